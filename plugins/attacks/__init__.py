"""Built-in attacks."""

from __future__ import annotations

from fedbench.core import Component, hookimpl

_HERE = "fedbench.plugins.attacks"


@hookimpl
def fedbench_attacks():
    yield Component(
        "loss-series",
        f"{_HERE}.trajectory:LossSeries",
        "mean negative loss on the target's uploaded models",
        "Yeom et al., CSF 2018",
    )
    yield Component(
        "avg-cosine",
        f"{_HERE}.trajectory:AvgCosine",
        "mean cosine of the sample's gradient and the target's update",
        "Li et al., ICLR 2023",
    )
    yield Component(
        "matched-filter",
        f"{_HERE}.trajectory:MatchedFilter",
        "product of gradients and updates over the gradients' length, all rounds",
        "Neyman & Pearson, 1933",
    )
    yield Component(
        "fedmia-i",
        f"{_HERE}.fedmia:FedMIAI",
        "the target's loss among the other clients', averaged over rounds",
        "Zhu et al., CVPR 2025",
    )
    yield Component(
        "fedmia-ii",
        f"{_HERE}.fedmia:FedMIAII",
        "the target's gradient cosine among the other clients', averaged",
        "Zhu et al., CVPR 2025",
    )
    yield Component(
        "fta-c",
        f"{_HERE}.trajectory:FTAC",
        "how fast the confidence rises on the target's uploaded models",
        "Chang et al., USENIX Security 2024",
    )
    yield Component(
        "fta-l",
        f"{_HERE}.trajectory:FTAL",
        "how fast the loss falls on the target's uploaded models",
        "Chang et al., USENIX Security 2024",
    )
    yield Component(
        "seqmia",
        f"{_HERE}.series:SeqMIA",
        "recurrent net on five signals, trained on a colluding client",
        "Li et al., CCS 2024",
    )
    yield Component(
        "blackbox-loss",
        f"{_HERE}.trajectory:BlackboxLoss",
        "negative loss on the target's uploaded model, one round",
        "Yeom et al., CSF 2018",
    )
    yield Component(
        "grad-cosine",
        f"{_HERE}.trajectory:GradCosine",
        "cosine of the sample's gradient and the update, one round",
        "Li et al., ICLR 2023",
    )
    yield Component(
        "grad-diff",
        f"{_HERE}.trajectory:GradDiff",
        "how much the sample's gradient lengthens the update, one round",
        "Li et al., ICLR 2023",
    )
    yield Component(
        "grad-norm",
        f"{_HERE}.trajectory:GradNorm",
        "minus the squared norm of the sample's gradient, one round",
        "Nasr et al., CCS 2018",
    )
    yield Component(
        "fedmia",
        f"{_HERE}.fedmia:LiftedFedMIA",
        "FedMIA's test on any measurement or signal",
        "Zhu et al., CVPR 2025",
    )
    yield Component(
        "cs-mia",
        f"{_HERE}.series:CSMIA",
        "net on the series of confidences, trained on a colluding client",
        "Gu et al., Information Sciences 2022",
    )
    yield Component(
        "dsm-mia",
        f"{_HERE}.series:DSMMIA",
        "SeqMIA's net on the global model's metrics and all clients' losses",
        "DS-MIA, released code",
    )
    yield Component(
        "source-inference",
        f"{_HERE}.source:SourceInference",
        "the target's loss against the least of the other clients', one round",
        "Hu et al., ICDM 2021",
    )
    yield Component(
        "projres",
        f"{_HERE}.received:ProjRes",
        "how near the sample's embedding is to the rows of a layer's update, one round",
        "Deng et al., 2026",
    )
    yield Component(
        "prolin",
        f"{_HERE}.prolin:Prolin",
        "the target's part in the coalition's sums of changing cohorts",
        "Kerkouche et al., WPES 2023",
    )
    yield Component(
        "fta",
        f"{_HERE}.trajectory:FTA",
        "how fast the loss falls on the global model: a participant's view",
        "Chang et al., USENIX Security 2024",
    )
    yield Component(
        "passive",
        f"{_HERE}.poisoning.base:Passive",
        "member iff the global model is right; no poisoning",
        "Yeom et al., CSF 2018",
    )
    yield Component(
        "passive-trained",
        f"{_HERE}.poisoning.base:PassiveTrained",
        "faithful: as passive, but trains on the attack set",
        "Mo et al., ICCV 2025",
    )
    yield Component(
        "gradient-ascent",
        f"{_HERE}.poisoning.base:GradientAscent",
        "active: ascends the attack set's loss",
        "Nasr et al., S&P 2019",
    )
    yield Component(
        "agrevader",
        f"{_HERE}.poisoning.evasion:AGREvader",
        "active: wrong labels covered by an honest update, by distance",
        "Zhang et al., CCS 2023",
    )
    yield Component(
        "fedpoisonmia",
        f"{_HERE}.poisoning.fedpoisonmia:FedPoisonMIA",
        "active: wrong labels behind chosen samples, by angle",
        "Mo et al., ICCV 2025",
    )
    yield Component(
        "adaptive-atm",
        f"{_HERE}.poisoning.evasion:AdaptiveATM",
        "active: wrong labels pulled below ATM's trimming",
        "Mo et al., ICCV 2025",
    )
    yield Component(
        "shadow",
        f"{_HERE}.shadow_models:ShadowModelAttack",
        "net on the sorted prediction, trained on shadow models",
        "Shokri et al., S&P 2017",
    )
    yield Component(
        "lira-offline",
        f"{_HERE}.shadow_models:LiRAOffline",
        "confidence against shadow models without the sample",
        "Carlini et al., S&P 2022",
    )
    yield Component(
        "rmia",
        f"{_HERE}.shadow_models:RMIA",
        "likelihood ratio against that of a population, with shadow models",
        "Zarifzadeh et al., ICML 2024",
    )
    yield Component(
        "threshold-confidence",
        f"{_HERE}.thresholds:ThresholdConfidence",
        "confidence in the label above a threshold",
        "Song & Mittal, USENIX Security 2021",
    )
    yield Component(
        "threshold-entropy",
        f"{_HERE}.thresholds:ThresholdEntropy",
        "entropy of the prediction below a threshold",
        "Salem et al., NDSS 2019",
    )
    yield Component(
        "threshold-modified-entropy",
        f"{_HERE}.thresholds:ThresholdModifiedEntropy",
        "modified entropy below a threshold",
        "Song & Mittal, USENIX Security 2021",
    )
    yield Component(
        "threshold-loss",
        f"{_HERE}.thresholds:ThresholdLoss",
        "loss below a threshold",
        "Yeom et al., CSF 2018",
    )
    yield Component(
        "label-only",
        f"{_HERE}.thresholds:LabelOnly",
        "how well the label holds under augmentations and noise",
        "Choquette-Choo et al., ICML 2021",
    )
    yield Component(
        "logistic-regression",
        f"{_HERE}.classifiers:LogisticRegressionAttack",
        "regression on logits, loss and gradient length",
        "Shokri et al., S&P 2017",
    )
    yield Component(
        "knn",
        f"{_HERE}.classifiers:KNN",
        "nearest neighbours of logits, loss and gradient length",
        "Shokri et al., S&P 2017",
    )
    yield Component(
        "random-forest",
        f"{_HERE}.classifiers:RandomForest",
        "forest on logits, loss and gradient length",
        "Shokri et al., S&P 2017",
    )
    yield Component(
        "mlp",
        f"{_HERE}.classifiers:MLPAttack",
        "net on logits, loss and gradient length",
        "Nasr et al., S&P 2019",
    )
    yield Component(
        "stacked",
        f"{_HERE}.stacked:Stacked",
        "ensemble of all signals and rounds, trained on colluding clients",
        "NIST genomics privacy-preserving federated learning red team, 2025",
    )
    yield Component(
        "adaptive-membershield",
        f"{_HERE}.thresholds:AdaptiveMemberShield",
        "loss against MemberShield's soft labels, known to the adversary",
        "Song & Mittal, USENIX Security 2021",
    )
    yield Component(
        "adaptive-targets",
        f"{_HERE}.adaptive:AdaptiveTargets",
        "loss against the defense's own soft labels, one round",
        "Aerni et al., 2024",
    )
    yield Component(
        "adaptive-sampling",
        f"{_HERE}.adaptive:AdaptiveSampling",
        "FedMIA-II over the share of rounds that show the sample most",
        "Aerni et al., 2024",
    )
    yield Component(
        "adaptive-cofedmid",
        f"{_HERE}.adaptive:AdaptiveCoFedMID",
        "cosine without the scalar noise, in the rounds that train the class",
        "Aerni et al., 2024",
    )


@hookimpl
def fedbench_signals():
    yield Component(
        "projection-residual",
        f"{_HERE}.received:ProjectionResidual",
        "distance of an embedding from the row space of a layer's update",
        "Deng et al., 2026",
    )
    yield Component(
        "received-metrics",
        f"{_HERE}.received:ReceivedMetrics",
        "SeqMIA's five metrics under the model that the client received, a vector",
        "Li et al., CCS 2024",
    )
    yield Component(
        "unshifted-cosine",
        f"{_HERE}.adaptive:UnshiftedCosine",
        "gradient cosine after a constant on the last parameters is taken out",
    )
