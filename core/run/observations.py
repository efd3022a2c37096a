"""Select what an attack sees of the candidates through its view."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy import ndarray

from fedbench.core.contract.attack import Attack, Observations, ShadowModels, View
from fedbench.core.contract.errors import SkipCell
from fedbench.core.numerics.rng import numpy_rng
from fedbench.core.population.audit import AuditSet
from fedbench.core.run.job import Job
from fedbench.core.run.needs import compared
from fedbench.core.run.train import Run
from fedbench.core.signals.measure import COALITION, GRADIENT_SIGNALS, model_of_row, seen_from


def observations_of(run: Run, attack: Attack, audit: AuditSet) -> Observations:
    """Return the observations of one target's candidates through the attack's view."""
    job = run.job
    scene = run.scene
    trained = run.trained
    client = audit.target.client
    view = attack.view
    if attack.needs_shadow_models and not scene.aligned:
        raise SkipCell(
            "shadow models answer for fixed candidates, and align_nonmembers: false redraws them "
            "in every round"
        )
    clients = compared(job, client, view)
    pick = _positions(run, audit, _drawn_rows(job, view, clients))
    served = trained.assignment[:, scene.client_of(audit)]
    observed = _seen(run, view, client, pick, served, clients)
    observed = replace(observed, defense=_known(job, attack))
    if attack.needs_shadow_models:
        return replace(observed, shadow_models=_shadow_models(run, pick, served[-1]))
    if not len(observed.clients):
        raise SkipCell(f"the view '{view}' is empty in this run (coalition: {job.coalition})")
    if attack.needs and not observed.signals:
        raise SkipCell(
            f"the view '{view}' holds none of the signals that it needs "
            f"({', '.join(sorted(attack.needs))})"
        )
    return observed


def _known(job: Job, attack: Attack) -> Mapping[str, Mapping[str, Any]]:
    """Return the parameters of the components of the defense that an attack is against."""
    parts = [part for part in job.defense.chain if part.name in attack.against]
    return MappingProxyType({part.name: MappingProxyType(part.params) for part in parts})


def observations_of_colluder(
    run: Run,
    view: View,
    j: int,
    order: np.ndarray,
    member: np.ndarray,
    taught: np.ndarray,
) -> Observations:
    """Return what colluder ``j`` sees of the samples that it teaches with.

    Args:
        order: [N] positions in the pool in the order an attack gets to see them.
        member: [N] bool, whether ``j`` trained on them.
        taught: [m] positions in ``order`` of the samples that it teaches with.
    """
    clients = compared(run.job, j, view)
    pick = order
    if not run.scene.aligned:
        pick = _redrawn_pool(run, order, member, j, _drawn_rows(run.job, view, clients))
    served = run.trained.assignment[:, np.full(len(taught), j)]
    return _seen(run, view, j, pick[..., taught], served, clients)


def _seen(
    run: Run,
    view: View,
    client: int | None,
    pick: np.ndarray,
    served: np.ndarray,
    clients: list[int],
) -> Observations:
    """Return the observations of the candidates at positions ``pick`` of the pool."""
    trained = run.trained
    rows = trained.rows
    if view == "coalition":
        rows = seen_from(client, rows, run.job.coalitions)
    signals = trained.signals
    secret = _secret(run.job, signals) if view == "external" else ()
    observed = observe(view, client, rows, trained.rounds, signals, pick, served, clients, secret)
    if view == "coalition":
        groups = run.job.coalitions
        group = next((g for g, members in enumerate(groups) if client in members), 0)
        observed = replace(observed, shares=trained.shares[group])
    return observed


def _secret(job: Job, names: Iterable[str]) -> list[str]:
    """Return those of the signals that a user of the final model cannot measure: signals of the
    update, of the received model, or of a model before its protection.
    """
    # the engine's own, those of the gradient and before the defense, are not among the job's
    uses = job.signals
    return [name for name in names if name not in uses or uses[name].load().of_update]


def _positions(run: Run, audit: AuditSet, rows: Sequence[int]) -> np.ndarray:
    """Return [n] positions of the candidates in the pool; [R, M, n] where the suite asks for the
    released code's redrawing.
    """
    scene = run.scene
    pick = np.searchsorted(scene.pool, audit.ids)
    if scene.aligned:
        return pick
    owners = scene.redrawn_from(audit)[scene.pool]
    n_rounds = len(run.trained.rounds)
    return redrawn(
        pick,
        audit.owner,
        owners,
        n_rounds,
        rows,
        run.job.seed,
        audit.target.code,
    )


def _shadow_models(
    run: Run,
    pick: np.ndarray,
    model_of: np.ndarray,
) -> ShadowModels | None:
    """Return the answers of the shadow models and the target models for the candidates at positions
    ``pick`` [n] of the pool; None where the setting has no shadow models.
    """
    shadows = run.shadows
    logits = run.trained.logits
    scene = run.scene
    if shadows is None:
        return None
    assert logits is not None
    pool = len(scene.pool)
    return ShadowModels(
        logits=shadows.logits[:, pick],
        shadow_logits=shadows.logits[:, pool:],
        shadow_y=scene.y_of(scene.shadow),
        shadow_member=shadows.member,
        target_logits=logits[model_of, pick],
        model_of=model_of,
        target_shadow_logits=logits[:, pool:],
    )


def read_only(a: np.ndarray) -> np.ndarray:
    """Return a view that an attack cannot write to: views of one array go to several targets."""
    view = a.view()
    view.flags.writeable = False
    return view


def frozen(observed: Observations) -> Observations:
    """Return observations that an attack cannot write to."""
    models = observed.shadow_models
    if models is not None:
        arrays = {field.name: getattr(models, field.name) for field in fields(models)}
        models = ShadowModels(**{name: read_only(a) for name, a in arrays.items()})
    return replace(
        observed,
        signals={name: read_only(a) for name, a in observed.signals.items()},
        shadow_models=models,
        rounds=read_only(observed.rounds),
        shares=None if observed.shares is None else read_only(observed.shares),
        clients=read_only(observed.clients),
    )


def part_of(observed: Observations, positions: np.ndarray) -> Observations:
    """Return the observations of the candidates at these positions, as copies."""
    signals = {
        name: a[:, :, positions] if a.shape[2] > 1 else a.copy()
        for name, a in observed.signals.items()
    }
    models = observed.shadow_models
    if models is not None:
        models = replace(
            models,
            logits=models.logits[:, positions],
            target_logits=models.target_logits[positions],
            model_of=models.model_of[positions],
        )
    return replace(observed, signals=signals, shadow_models=models)


# --- out of the signals of all rows ---------------------------------------------------------------


def observe(
    view: View,
    target: int | None,
    rows: list[int],
    rounds: ndarray,
    arrays: Mapping[str, ndarray],
    pick: ndarray,
    served: ndarray | None = None,
    visible: Collection[int] | None = None,
    secret: Collection[str] = GRADIENT_SIGNALS,
) -> Observations:
    """Select what ``view`` sees of the candidates; signals that it does not contain are left out.

    Args:
        target: a client's id; None for a view without client rows.
        pick: [n] positions of the candidates in the pool, or [R, M, n] where every round and row
            has candidates of its own (the released code's quirk).
        served: [R, n] index of the global model that serves each candidate's client; the global
            views see a candidate through it.
        visible: the clients with rows that the view shows, by default all.
        secret: signals that a user of the final model cannot measure.
    """
    chosen = _rows_in_view(view, rows, visible)
    last: slice = slice(None)
    hidden: Collection[str] = ()
    if view == "external":  # the final model, not the update that led to it
        last = slice(-1, None)
        hidden = secret
    clients = np.array([rows[i] for i in chosen], dtype=np.int64)
    position = 0
    through: ndarray | None = None
    if served is not None and view in ("client", "external") and len(chosen) > 1:
        clients = clients[:1]
        through = served[last]
    if view == "server":
        if target not in clients:
            raise SkipCell("it follows one client's rows, but the target is many clients together")
        position = clients.tolist().index(target)
    if pick.ndim > 1:
        pick = pick[last][:, : len(chosen)]
    signals = {}
    for name in arrays if chosen else ():
        if name not in hidden:
            values = arrays[name][last]
            if values.shape[1] > 1 or len(rows) == 1:
                values = values[:, chosen]
            signals[name] = _candidates(values, pick, through)
    return Observations(
        view=view,
        rounds=rounds[last],
        clients=clients,
        target=position,
        signals=signals,
        hidden=frozenset(arrays.keys() - signals.keys()),
    )


def _rows_in_view(view: View, rows: Sequence[int], visible: Collection[int] | None) -> list[int]:
    """Positions of the rows that a view shows; the coalition's mean stands before the clients."""
    if view in ("client", "external"):
        return [i for i, row in enumerate(rows) if model_of_row(row) is not None]
    clients = [i for i, row in enumerate(rows) if row >= 0 and (visible is None or row in visible)]
    if view == "server":
        return clients
    return [rows.index(COALITION), *clients] if COALITION in rows else []


def _candidates(values: ndarray, pick: ndarray, through: ndarray | None) -> ndarray:
    """Values [R, M, n, ...] of the candidates, out of those of the pool [R, M, N, ...]."""
    if values.shape[2] > 1 and pick.ndim == 1:
        values = values[:, :, pick]
    elif values.shape[2] > 1:
        values = _take(values, pick, axis=2)
    if through is not None and values.shape[1] > 1:
        values = _take(values, through[:, None], axis=1)
    return values


def _take(values: ndarray, index: ndarray, axis: int) -> ndarray:
    """Elements of ``values`` [R, M, N, ...] at ``index`` [R, M, n] along an axis."""
    trailing = (1,) * (values.ndim - index.ndim)
    return np.take_along_axis(values, index.reshape(index.shape + trailing), axis=axis)


# --- FedMIA's released code redraws the non-members in every round and for every client -----------


def _drawn_rows(job: Job, view: View, clients: list[int]) -> Sequence[int]:
    """Return the keys of the draws of the rows that a view shows: of the server's, the clients'
    ids.
    """
    return clients if view == "server" else range(job.clients)


def _redrawn_pool(
    run: Run,
    order: np.ndarray,
    member: np.ndarray,
    j: int,
    rows: Sequence[int],
) -> np.ndarray:
    """Return [R, M, N] the pool as the released code would show it to a colluder: its own samples
    in place, the rest redrawn.
    """
    owner = np.where(member, j, -2)
    owners_of_pool = np.empty_like(owner)
    owners_of_pool[order] = owner
    return redrawn(
        order,
        owner,
        owners_of_pool,
        len(run.trained.rounds),
        rows,
        run.job.seed,
        j,
    )


def redrawn(
    pick: np.ndarray,
    owner: np.ndarray,
    owners_of_pool: np.ndarray,
    rounds: int,
    rows: Sequence[int],
    seed: int,
    target: int,
) -> np.ndarray:
    """Return [R, M, n] pool positions: those of members as in ``pick`` [n], the rest drawn anew per
    round and row. A redrawn candidate has the owner of the one it replaces, as the released code
    keeps the mix.

    Args:
        owner: [n] the training client of each candidate, -1 outside.
        owners_of_pool: [N] the training client of each sample of the pool.
        rounds: R.
        rows: [M] the key of each row's draws.
    """
    positions = np.broadcast_to(pick, (rounds, len(rows), len(pick))).copy()
    for r in range(rounds):
        for m, key in enumerate(rows):
            rng = numpy_rng(seed, f"misaligned:{target}", r, key)
            for k in np.unique(owner[owner != target]):
                replaced = np.flatnonzero(owner == k)
                positions[r, m, replaced] = rng.choice(
                    np.flatnonzero(owners_of_pool == k), len(replaced), replace=False
                )
    return positions
