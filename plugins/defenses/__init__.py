"""Built-in defenses."""

from __future__ import annotations

from fedbench.core import Component, hookimpl

_HERE = "fedbench.plugins.defenses"


@hookimpl
def fedbench_defenses():
    yield Component(
        "none",
        f"{_HERE}.uploads:NoDefense",
        "plain FedAvg, without a defense",
        "McMahan et al., AISTATS 2017",
    )
    yield Component(
        "free-rider",
        f"{_HERE}.uploads:FreeRider",
        "members upload nothing: the floor of every board",
        floor=True,
    )
    yield Component(
        "placebo",
        f"{_HERE}.uploads:Placebo",
        "members train plainly in another order: the noise of every board",
        floor=True,
    )
    yield Component(
        "grad-sparse",
        f"{_HERE}.uploads:GradSparse",
        "upload only the large entries of each tensor's update",
        "Aji & Heafield, EMNLP 2017",
    )
    yield Component(
        "grad-noise",
        f"{_HERE}.uploads:GradNoise",
        "Gaussian noise on each member's update",
        "Zhu et al., CVPR 2025 (FedMIA)",
    )
    yield Component(
        "dp-sgd",
        f"{_HERE}.dp_sgd:DPSGD",
        "clip each example's gradient (or each update) and add noise",
        "Abadi et al., CCS 2016",
    )
    yield Component(
        "mixup",
        f"{_HERE}.augmentation:Mixup",
        "train on convex combinations of pairs of samples",
        "Zhang et al., ICLR 2018",
    )
    yield Component(
        "relaxloss",
        f"{_HERE}.losses:RelaxLoss",
        "hold the training loss at a target level",
        "Chen, Yu & Fritz, ICLR 2022",
    )
    yield Component(
        "hamp",
        f"{_HERE}.losses:HAMP",
        "high-entropy soft labels and an entropy bonus (training phase)",
        "Chen & Pattabiraman, NDSS 2024",
    )
    yield Component(
        "label-smoothing",
        f"{_HERE}.losses:LabelSmoothing",
        "targets that share some probability with all classes",
        "Szegedy et al., CVPR 2016",
    )
    yield Component(
        "confidence-penalty",
        f"{_HERE}.losses:ConfidencePenalty",
        "reward the entropy of the predictions",
        "Pereyra et al., ICLR workshop 2017",
    )
    yield Component(
        "weight-decay",
        f"{_HERE}.losses:WeightDecay",
        "an L2 penalty on the last fully connected layers",
        "Krogh & Hertz, NeurIPS 1991",
    )
    yield Component(
        "dropout",
        f"{_HERE}.losses:Dropout",
        "zero inputs of the last fully connected layers at random, in training",
        "Srivastava et al., JMLR 2014",
    )
    yield Component(
        "memguard",
        f"{_HERE}.memguard:MemGuard",
        "answer queries with noise that leaves membership a guess",
        "Jia et al., CCS 2019",
    )
    yield Component(
        "cofedmid",
        f"{_HERE}.cofedmid.defense:CoFedMID",
        "coalition: class partition, sample recycling, noise that cancels in the aggregate",
        "Bai et al., CoFedMID",
    )
    yield Component(
        "perturb",
        f"{_HERE}.uploads:Perturb",
        "clip each member's update and add Gaussian noise",
        "Zhu et al., CVPR 2025 (FedMIA)",
    )
    yield Component(
        "quantize",
        f"{_HERE}.uploads:Quantize",
        "upload each tensor's update in a few bits an entry",
        "Zhu et al., CVPR 2025 (FedMIA)",
    )
    yield Component(
        "data-augmentation",
        f"{_HERE}.augmentation:DataAugmentation",
        "show images shifted, mirrored, rotated and relit",
        "Shorten & Khoshgoftaar, Journal of Big Data 2019",
    )
    yield Component(
        "data-sampling",
        f"{_HERE}.augmentation:DataSampling",
        "train on a part of the batches each round",
        "Zhu et al., CVPR 2025 (FedMIA)",
    )
    yield Component(
        "instahide",
        f"{_HERE}.augmentation:InstaHide",
        "train on sign-masked mixtures of images",
        "Huang et al., ICML 2020",
    )
    yield Component(
        "membershield",
        f"{_HERE}.early_stopping:MemberShield",
        "soft labels, and early stopping that keeps the global model where no epoch beats it",
        "Ahmed et al., Neural Networks 2025 (MemberShield)",
    )
    yield Component(
        "early-stopping",
        f"{_HERE}.early_stopping:EarlyStopping",
        "stop a round when the validation loss no longer falls",
        "Prechelt, 1998",
    )
    yield Component(
        "kd",
        f"{_HERE}.losses:SelfDistillation",
        "upload a student of the member's own teacher",
        "Shejwalkar & Houmansadr, AAAI 2021",
    )
    yield Component(
        "adv-reg",
        f"{_HERE}.adv_reg:AdvReg",
        "train against an inference network on a reference set of one's own",
        "Nasr et al., CCS 2018",
    )
    yield Component(
        "fedavg",
        f"{_HERE}.rules.means:FedAvg",
        "server: the mean of the rows, weighted by data or equally",
        "McMahan et al., AISTATS 2017",
    )
    yield Component(
        "server-dp",
        f"{_HERE}.rules.means:ServerDP",
        "server: clip each row and add Gaussian noise to the mean",
        "McMahan et al., ICLR 2018",
    )
    yield Component(
        "top-k",
        f"{_HERE}.rules.means:TopK",
        "server: average each row's largest entries",
        "Aji & Heafield, EMNLP 2017",
    )
    yield Component(
        "median",
        f"{_HERE}.rules.means:Median",
        "server: the median of every coordinate",
        "Yin et al., ICML 2018",
    )
    yield Component(
        "trimmed-mean",
        f"{_HERE}.rules.means:TrimmedMean",
        "server: every coordinate's mean without its extremes",
        "Yin et al., ICML 2018",
    )
    yield Component(
        "krum",
        f"{_HERE}.rules.krum:Krum",
        "server: the one row with the closest neighbours",
        "Blanchard et al., NeurIPS 2017",
    )
    yield Component(
        "multi-krum",
        f"{_HERE}.rules.krum:MultiKrum",
        "server: the mean of the rows with the closest neighbours",
        "Blanchard et al., NeurIPS 2017",
    )
    yield Component(
        "fang",
        f"{_HERE}.rules.screening:Fang",
        "server: leave out rows that raise loss or error on its own data",
        "Fang et al., USENIX Security 2020",
    )
    yield Component(
        "deepsight",
        f"{_HERE}.rules.screening:DeepSight",
        "server: leave out clusters of rows trained on few classes",
        "Rieger et al., NDSS 2022",
    )
    yield Component(
        "atm",
        f"{_HERE}.rules.means:AngularTrimmedMean",
        "server: the mean without the rows at the largest angles",
        "Mo et al., ICCV 2025",
    )
    yield Component(
        "norm-clipping",
        f"{_HERE}.rules.means:NormClipping",
        "server: no row counts for more than a bound",
        "Sun et al., 2019",
    )
    yield Component(
        "geometric-median",
        f"{_HERE}.rules.means:GeometricMedian",
        "server: the point nearest to all rows",
        "Pillutla et al., IEEE TSP 2022",
    )
    yield Component(
        "bulyan",
        f"{_HERE}.rules.krum:Bulyan",
        "server: Krum's choice, then the values near the median",
        "El Mhamdi et al., ICML 2018",
    )
    yield Component(
        "ifca",
        f"{_HERE}.ifca:IFCA",
        "several global models: every client trains the one that fits its data",
        "Ghosh et al., NeurIPS 2020",
    )
    yield Component(
        "ifca-mir",
        f"{_HERE}.ifca:IFCAMIR",
        "IFCA with clients that weigh a model's fit against its risk of membership inference",
        "Jung et al., ARTMAN 2025",
    )
    yield Component(
        "local-only",
        f"{_HERE}.ifca:LocalOnly",
        "every client trains alone and shares nothing",
        "Ghosh et al., NeurIPS 2020",
    )
