"""Signals that are measured in an audited round."""

from __future__ import annotations

from fedbench.core import Component, hookimpl

_HERE = "fedbench.core.signals.builtin"


@hookimpl
def fedbench_signals():
    yield Component("loss", f"{_HERE}:Loss", "cross-entropy", "Yeom et al., CSF 2018")
    yield Component(
        "confidence",
        f"{_HERE}:Confidence",
        "softmax probability of the label",
        "Yeom et al., CSF 2018",
    )
    yield Component(
        "logit-confidence",
        f"{_HERE}:LogitConfidence",
        "log odds of the label, ln(p_y / (1 - p_y))",
        "Carlini et al., S&P 2022",
    )
    yield Component(
        "max-prob", f"{_HERE}:MaxProb", "largest softmax probability", "Salem et al., NDSS 2019"
    )
    yield Component(
        "std-prob", f"{_HERE}:StdProb", "spread of the softmax vector", "Salem et al., NDSS 2019"
    )
    yield Component(
        "entropy", f"{_HERE}:Entropy", "entropy of the prediction", "Salem et al., NDSS 2019"
    )
    yield Component(
        "modified-entropy",
        f"{_HERE}:ModifiedEntropy",
        "entropy of the prediction, label included",
        "Song & Mittal, USENIX Security 2021",
    )
    yield Component(
        "margin",
        f"{_HERE}:Margin",
        "logit of the label minus the largest other",
        "Carlini et al., S&P 2022",
    )
    yield Component("logits", f"{_HERE}:Logits", "the logits, a vector", "Shokri et al., S&P 2017")
    yield Component(
        "uniform-loss",
        f"{_HERE}:UniformLoss",
        "cross-entropy of a uniform label, mean of -ln p over the classes",
    )
    yield Component(
        "robustness",
        f"{_HERE}:Robustness",
        "share of perturbed copies that keep the label: labels only",
        "Choquette-Choo et al., ICML 2021",
    )
    yield Component(
        "grad-dot",
        f"{_HERE}:GradDot",
        "product of sample gradient and update",
        "Li et al., ICLR 2023",
    )
    yield Component(
        "grad-sq", f"{_HERE}:GradSq", "squared norm of the sample gradient", "Nasr et al., CCS 2018"
    )
    yield Component(
        "upload-grad-sq",
        f"{_HERE}:UploadGradSq",
        "squared norm of the sample gradient at the uploaded model",
        "Nasr et al., S&P 2019",
    )
    yield Component(
        "update-sq", f"{_HERE}:UpdateSq", "squared norm of the update", "Li et al., ICLR 2023"
    )
