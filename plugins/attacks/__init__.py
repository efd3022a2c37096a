"""Built-in attacks."""

from __future__ import annotations

from fedbench.core import Component, hookimpl

_HERE = "fedbench.plugins.attacks"


@hookimpl
def fedbench_attacks():
    yield Component(
        "loss-series", f"{_HERE}.loss_series:LossSeries", "mean negative loss on the target's uploaded models",
        "Yeom et al., CSF 2018",
    )  # fmt: skip
    yield Component(
        "avg-cosine", f"{_HERE}.avg_cosine:AvgCosine", "mean cosine of the sample's gradient and the target's update",
        "Li et al., ICLR 2023",
    )  # fmt: skip
    yield Component(
        "fedmia-i", f"{_HERE}.fedmia:FedMIAI", "the target's loss among the other clients', averaged over rounds",
        "Zhu et al., CVPR 2025",
    )  # fmt: skip
    yield Component(
        "fedmia-ii", f"{_HERE}.fedmia:FedMIAII", "the target's gradient cosine among the other clients', averaged",
        "Zhu et al., CVPR 2025",
    )  # fmt: skip
    yield Component(
        "fta-c", f"{_HERE}.fta:FTAC", "how fast the confidence rises on the target's uploaded models",
        "Chang et al., USENIX Security 2024",
    )  # fmt: skip
    yield Component(
        "fta-l", f"{_HERE}.fta:FTAL", "how fast the loss falls on the target's uploaded models",
        "Chang et al., USENIX Security 2024",
    )  # fmt: skip
    yield Component(
        "seqmia", f"{_HERE}.seqmia:SeqMIA", "recurrent net on five signals, trained on a colluding client",
        "Li et al., CCS 2024",
    )  # fmt: skip
    yield Component(
        "blackbox-loss", f"{_HERE}.blackbox_loss:BlackboxLoss", "negative loss on the target's uploaded model, one round",
        "Yeom et al., CSF 2018",
    )  # fmt: skip
    yield Component(
        "grad-cosine", f"{_HERE}.grad_single:GradCosine", "cosine of the sample's gradient and the update, one round",
        "Li et al., ICLR 2023",
    )  # fmt: skip
    yield Component(
        "grad-diff", f"{_HERE}.grad_single:GradDiff", "how much the sample's gradient lengthens the update, one round",
        "Li et al., ICLR 2023",
    )  # fmt: skip
    yield Component(
        "grad-norm", f"{_HERE}.grad_single:GradNorm", "minus the squared norm of the sample's gradient, one round",
        "Nasr et al., CCS 2018",
    )  # fmt: skip
    yield Component(
        "fedmia", f"{_HERE}.fedmia_lifted:LiftedFedMIA", "FedMIA's test on any measurement or signal",
        "Zhu et al., CVPR 2025",
    )  # fmt: skip
    yield Component(
        "cs-mia", f"{_HERE}.cs_mia:CSMIA", "net on the series of confidences, trained on a colluding client",
        "Gu et al., Information Sciences 2022",
    )  # fmt: skip
    yield Component(
        "fta", f"{_HERE}.fta_global:FTA", "how fast the loss falls on the global model: a participant's view",
        "Chang et al., USENIX Security 2024",
    )  # fmt: skip
    yield Component(
        "passive", f"{_HERE}.poisoning.passive:Passive", "member iff the global model is right; nobody poisons",
        "Yeom et al., CSF 2018",
    )  # fmt: skip
    yield Component(
        "passive-trained", f"{_HERE}.poisoning.passive:PassiveTrained", "faithful: as passive, but trains on the attack set",
        "Mo et al., ICCV 2025",
    )  # fmt: skip
    yield Component(
        "gradient-ascent", f"{_HERE}.poisoning.gradient_ascent:GradientAscent", "active: ascends the attack set's loss",
        "Nasr et al., S&P 2019",
    )  # fmt: skip
    yield Component(
        "agrevader", f"{_HERE}.poisoning.agrevader:AGREvader", "active: wrong labels covered by an honest update, by distance",
        "Zhang et al., CCS 2023",
    )  # fmt: skip
    yield Component(
        "fedpoisonmia", f"{_HERE}.poisoning.fedpoisonmia:FedPoisonMIA", "active: wrong labels behind chosen samples, by angle",
        "Mo et al., ICCV 2025",
    )  # fmt: skip
    yield Component(
        "adaptive-atm", f"{_HERE}.poisoning.adaptive_atm:AdaptiveATM", "active: wrong labels pulled below ATM's trimming",
        "Mo et al., ICCV 2025",
    )  # fmt: skip
    yield Component(
        "shadow", f"{_HERE}.shadow_models.attack_net:ShadowModelAttack", "net on the sorted prediction, trained on shadow models",
        "Shokri et al., S&P 2017",
    )  # fmt: skip
    yield Component(
        "lira-offline", f"{_HERE}.shadow_models.lira_offline:LiRAOffline", "confidence against shadow models without the sample",
        "Carlini et al., S&P 2022",
    )  # fmt: skip
    yield Component(
        "rmia", f"{_HERE}.shadow_models.rmia:RMIA", "likelihood ratio against that of a population, with shadow models",
        "Zarifzadeh et al., ICML 2024",
    )  # fmt: skip
    yield Component(
        "threshold-confidence", f"{_HERE}.thresholds.signals:ThresholdConfidence", "confidence in the label above a threshold",
        "Song & Mittal, USENIX Security 2021",
    )  # fmt: skip
    yield Component(
        "threshold-entropy", f"{_HERE}.thresholds.signals:ThresholdEntropy", "entropy of the prediction below a threshold",
        "Salem et al., NDSS 2019",
    )  # fmt: skip
    yield Component(
        "threshold-modified-entropy", f"{_HERE}.thresholds.signals:ThresholdModifiedEntropy",
        "modified entropy below a threshold", "Song & Mittal, USENIX Security 2021",
    )  # fmt: skip
    yield Component(
        "threshold-loss", f"{_HERE}.thresholds.signals:ThresholdLoss", "loss below a threshold", "Yeom et al., CSF 2018",
    )  # fmt: skip
    yield Component(
        "label-only", f"{_HERE}.thresholds.label_only:LabelOnly", "how well the label holds under augmentations and noise",
        "Choquette-Choo et al., ICML 2021",
    )  # fmt: skip
    yield Component(
        "logistic-regression", f"{_HERE}.trained.logistic_regression:LogisticRegressionAttack",
        "regression on logits, loss and gradient length", "Shokri et al., S&P 2017",
    )  # fmt: skip
    yield Component(
        "knn", f"{_HERE}.trained.knn:KNN", "nearest neighbours of logits, loss and gradient length", "Shokri et al., S&P 2017",
    )  # fmt: skip
    yield Component(
        "random-forest", f"{_HERE}.trained.random_forest:RandomForest", "forest on logits, loss and gradient length",
        "Shokri et al., S&P 2017",
    )  # fmt: skip
    yield Component(
        "mlp", f"{_HERE}.trained.mlp:MLPAttack", "net on logits, loss and gradient length", "Nasr et al., S&P 2019",
    )  # fmt: skip
    yield Component(
        "stacked", f"{_HERE}.trained.stacked:Stacked", "ensemble of all signals and rounds, trained on colluding clients",
        "NIST genomics privacy-preserving federated learning red team, 2025",
    )  # fmt: skip
    yield Component(
        "adaptive-membershield", f"{_HERE}.adaptive_membershield:AdaptiveMemberShield",
        "loss against MemberShield's soft labels, known to the adversary", "Song & Mittal, USENIX Security 2021",
    )  # fmt: skip
