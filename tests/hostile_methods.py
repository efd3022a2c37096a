"""Methods that harm whoever shares their process, by accident or not: a package of them, and neighbours who would notice.

Each entry is the body of one method, run before it does its honest work. ``attacks``: in ``score``; ``defenses``: in
``protect``; ``analyses``: in ``analyse``.
"""

from __future__ import annotations

import textwrap
from pathlib import Path

from fake_packages import install

STATE = {
    "dtype": "torch.set_default_dtype(torch.float64)",
    "threads": "torch.set_num_threads(2)",
    "no-grad": "torch.set_grad_enabled(False)",
    "inference": "torch.inference_mode(True).__enter__()",
    "autocast": "torch.autocast('cpu', dtype=torch.bfloat16).__enter__()",
    "matmul": "torch.set_float32_matmul_precision('medium')",
    "nondeterministic": "torch.use_deterministic_algorithms(False)",
    "warn-only": "torch.use_deterministic_algorithms(True, warn_only=True)",
    "flush": "torch.set_flush_denormal(True)",
    "meta-device": "torch.set_default_device('meta')",
    "seeds": "random.seed(0); np.random.seed(0); torch.manual_seed(0)",
    "draws": "random.random(); np.random.rand(); torch.rand(1)",
    "module-hook": "torch.nn.modules.module.register_module_forward_hook(lambda m, a, out: out * 0)",
    "function-mode": "Zeros().__enter__()",
    "patch-softmax": "torch.Tensor.softmax = lambda self, *a, **k: self * 0",
    "patch-matmul": "torch.Tensor.__matmul__ = lambda a, b: a * 0",
    "patch-sort": "np.sort = np.argsort = lambda a, *r, **k: np.zeros(len(a), int)",
    "patch-isfinite": "np.isfinite = lambda a: np.zeros(np.shape(a), bool)",
    "patch-audit": "Audit.rng = property(lambda audit: np.random.default_rng(0))",
    "patch-observations": "Observations.of_target = lambda self, name: np.zeros((1, 3))",
    "patch-metrics": "import fedbench.core.metrics.groups as g; g.score_groups = lambda *a: {}",
    "patch-json": "json.dumps = lambda *a, **k: '{}'",
    "patch-open": "builtins.open = None",
    "numpy-errors": "np.seterr(all='raise')",
    "print-options": "np.set_printoptions(precision=1)",
    "warnings": "warnings.simplefilter('error')",
    "recursion": "sys.setrecursionlimit(100)",
    "no-gc": "gc.disable()",
    "trace": "sys.settrace(lambda *a: None)",
    "locale": "os.environ['LC_ALL'] = 'xx'; os.environ['FEDBENCH_DATA'] = '/nowhere'",
    "cwd": "os.chdir('/')",
    "umask": "os.umask(0o777)",
    "nice": "os.nice(5)",
    "alarm": "signal.signal(signal.SIGALRM, lambda *a: os._exit(9)); signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)",
    "ignores-term": "signal.signal(signal.SIGTERM, signal.SIG_IGN)",
    "thread": "threading.Thread(target=forever, daemon=True).start()",
    "child": "subprocess.Popen(['sleep', '60'])",
    "stdout": "os.close(1); os.close(2)",
    "handles": "globals().setdefault('kept', []).extend(open(os.devnull) for _ in range(200))",
    "memory": "globals()['heap'] = bytes(300_000_000)",
    "limits": "resource.setrlimit(resource.RLIMIT_NOFILE, (20, 20))",
    "file-size": "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)); signal.signal(signal.SIGXFSZ, signal.SIG_IGN)",
    "atexit": "atexit.register(lambda: os._exit(7))",
    "modules": "sys.modules['fedbench.core.metrics.auc'] = None",
    "exits": "sys.exit(0)",
    "leaves": "os._exit(0)",
    "aborts": "os.abort()",
    "raises": "raise KeyboardInterrupt",
    "generator-exit": "raise GeneratorExit",
}
# what only an attack is shown
SHOWN = {
    "writes-signals": "observations['loss'][...] = 7.0",
    "writes-views": "observations.signals['loss'].base[...] = 7.0",
    "writes-by-torch": "torch.from_numpy(np.asarray(observations['loss'])).fill_(7.0)",
    "writes-unlocked": "a = observations['loss']; b = a if a.base is None else a.base; b.flags.writeable = True; b[...] = 7.0",
    "writes-shadow": "observations.shadow_models.logits[...] = 0.0",
    "writes-names": "audit.ids[...] = 0; audit.y[...] = 0",
}
# these end the process or give no answer, so their own cells fail
FATAL = {"exits", "leaves", "aborts", "raises", "generator-exit"}

_PLUGIN = """
import atexit, builtins, gc, json, os, random, resource, signal, subprocess, sys, threading, time, warnings
import numpy as np
import torch
from torch.overrides import TorchFunctionMode
from fedbench.core import Analysis, Attack, Audit, Component, Defense, Findings, Number, Observations, hookimpl

class Zeros(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {{}}))
        return out * 0 if isinstance(out, torch.Tensor) and out.is_floating_point() else out

def forever():
    while True:
        torch.set_default_dtype(torch.float64)

class Honest(Attack):
    needs = frozenset({{"loss"}})
    needs_shadow_models = True
    view = "client"
    def score(self, observations, audit):
        return -observations.of_target("loss")[-1].astype(np.float64)

class Neighbour(Honest):
    '''Uses a little of everything that another could have changed.'''
    def score(self, observations, audit):
        x = torch.rand(8, 8) + torch.from_numpy(np.random.rand(8, 8)).float() + random.random()
        w = torch.nn.Linear(8, 8)
        y = (w(x) @ x).softmax(1) * torch.tensor(1e-40).item() + (x @ x).softmax(1)
        y.sum().backward()
        mixed = float(w.weight.grad.sum()) + float(y.detach().double().std()) + float(np.sort(np.random.rand(9))[3])
        mixed += audit.rng.random() + float(observations.shadow_models.logits.sum()) + float(observations["loss"].sum())
        mixed += float(observations.shadow_models.target_shadow_logits.sum()) + audit.ids.sum() % 97 + audit.y.sum()
        assert x.dtype == torch.float32 and len(json.dumps([1])) == 3 and len(open(os.devnull).read()) == 0
        return super().score(observations, audit) * (1 + mixed)

class Counts(Analysis):
    needs = frozenset({{"loss"}})
    def analyse(self, run, judgement):
        drawn = float(np.random.rand() + torch.rand(1) + random.random() + run.signals["loss"].sum())
        return Findings({{"n": Number(sum(len(t.scores) for t in judgement.targets) + drawn)}})

{classes}

@hookimpl
def fedbench_attacks():
    yield Component("neighbour", "harms:Neighbour", "would notice")
    for name in {attacks!r}:
        yield Component(name, "harms:" + name.replace("-", "_"), "harms")

@hookimpl
def fedbench_defenses():
    for name in {defenses!r}:
        yield Component(name, "harms:" + name.replace("-", "_"), "harms")

@hookimpl
def fedbench_analyses():
    yield Component("counts", "harms:Counts", "how many candidates")
    for name in {analyses!r}:
        yield Component(name, "harms:" + name.replace("-", "_"), "harms")
"""
_ATTACK = """
class {name}(Honest):
    def score(self, observations, audit):
        {body}
        return super().score(observations, audit)
"""
_DEFENSE = """
class {name}(Defense):
    def protect(self, update, ctx):
        {body}
        return update
"""
_ANALYSIS = """
class {name}(Counts):
    def analyse(self, run, judgement):
        {body}
        return super().analyse(run, judgement)
"""


def names(prefix: str, kinds: dict[str, str]) -> list[str]:
    """What the package calls them."""
    return [f"{prefix}-{kind}" for kind in kinds]


def install_harms(site: Path) -> Path:
    """The package, announced from ``site``."""
    classes = [
        template.format(name=f"{prefix}-{kind}".replace("-", "_"), body=body)
        for prefix, template, kinds in (("a", _ATTACK, STATE | SHOWN), ("d", _DEFENSE, STATE), ("n", _ANALYSIS, STATE))
        for kind, body in kinds.items()
    ]
    listed = {"attacks": names("a", STATE | SHOWN), "defenses": names("d", STATE), "analyses": names("n", STATE)}
    return install(site, "harms", textwrap.dedent(_PLUGIN).format(classes="\n".join(classes), **listed))
