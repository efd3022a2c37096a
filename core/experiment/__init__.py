"""Everything that decides a result: job, scene, training, shadow models, judgement."""
