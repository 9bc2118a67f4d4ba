# SPDX-License-Identifier: Apache-2.0
"""Fits on a mesh, run by tests in a process of its own: the number of devices is fixed before JAX starts.

Usage: on_devices.py OUT.npz STEPS MESHES [PORT NUM_PROCESSES PROCESS_ID]

With fewer than 100 steps it does the first fit only, and checks what each device holds.
"""

import sys

import equinox as eqx
import jax
import numpy as np
import optax
import pytest
from jax.sharding import Mesh

import quell
from quell.core import devices
from quell.core.tiers import tiered_jit
from quell.data.access import take_rows
from quell.fit import warm_start
from quell.models.row_sum import sum_over_rows

LONG = 100


def main(out, steps, sizes, port=None, num=None, process=None):
    if port is not None:
        jax.distributed.initialize(
            f"localhost:{port}", int(num), int(process), heartbeat_timeout_seconds=100, shutdown_timeout_seconds=100
        )
    found = {}
    if int(steps) < LONG:
        check_work_is_divided()
        check_wide_parameters_are_spread()
        check_a_checkpoint_goes_on_without_its_mesh(out)
        check_what_does_not_divide_is_refused()
        check_a_warm_start_is_the_same()
        check_a_program_runs_where_its_data_are()
    for size in map(int, sizes.split(",")):
        mesh = "all" if port else Mesh(np.array(jax.devices()[:size]), ("rows",)) if size else None
        for name, params in fits(int(steps), mesh).items():
            found |= {f"{size} {name} {k}": np.asarray(leaf) for k, leaf in enumerate(jax.tree.leaves(params))}
    if jax.process_index() == 0:
        np.savez(out, **found)


def fits(steps, mesh):
    """Parameters of fits with all variates of the paper and the joint quadratic, and with what is chosen by default."""
    model = own_rows()
    family = quell.FullRank(model.dim)
    joint = quell.ControlVariate(
        quell.Data(), quell.Reparameterization(), quell.ClosedForm(full_data=True), quell.AnchoredQuadratic(every=20)
    )
    by_name = {
        "all variates": {
            "variates": [*quell.paper.variates("S7"), joint],
            "optimizer": optax.adam(0.01),
            "sampler": quell.Sampler(1, 16),
        }
    }
    if steps >= LONG:
        by_name |= {"auto": {}, "replicates": {"variates": [joint], "sampler": quell.Sampler(8, 2)}}
    shared = {"steps": steps, "key": jax.random.key(3), "mesh": mesh}
    return {name: quell.fit(model, family, **options, **shared).params for name, options in by_name.items()}


def check_work_is_divided():
    """Fits would be the same if every device did everything, so check what each of them holds."""
    mesh = devices.checked_mesh("all")
    rows = devices.place_rows({"x": np.ones((64, 4))}, mesh)
    assert {shard.data.shape for shard in rows["x"].addressable_shards} == {(64 // mesh.size, 4)}
    with devices.in_use(mesh):
        taken = jax.jit(lambda data, index: take_rows(data, index)["x"])(rows, np.arange(0, 64, 4))
        assert {shard.data.shape for shard in taken.addressable_shards} == {(16 // mesh.size, 4)}
        total = jax.jit(lambda data: sum_over_rows(lambda own, counts: counts @ own["x"], data, at_once=2))
        program = total.lower(rows).compile().as_text()
        np.testing.assert_allclose(total(rows), [64.0] * 4)
    assert "all-reduce" in program
    assert "all-gather" not in program, "each device goes through its own rows"


def check_wide_parameters_are_spread(wide=16):
    """With a lower bound for what is wide; the fit is the same."""
    model, usual = own_rows(), devices.WIDE
    options = {"variates": (), "steps": 20, "sampler": quell.Sampler(1, 16), "key": jax.random.key(0)}
    alone = quell.fit(model, quell.FullRank(4), **options)
    devices.WIDE = wide
    result = quell.fit(model, quell.FullRank(4), mesh=Mesh(np.array(jax.devices()[:4]), ("rows",)), **options)
    devices.WIDE = usual
    assert {shard.data.shape for shard in result.params.scale.addressable_shards} == {(1, 4)}
    np.testing.assert_allclose(np.asarray(result.params.scale), alone.params.scale, rtol=1e-4, atol=1e-6)


def check_a_checkpoint_goes_on_without_its_mesh(out):
    """And the other way round, with default settings, which must not depend on the devices."""
    rng = np.random.default_rng(1)
    model = quell.logistic_regression(rng.normal(size=(2048, 3)), rng.integers(0, 2, size=2048))
    path, options = f"{out}.quell", {"variates": (), "key": jax.random.key(0)}
    for steps, mesh in ((10, "all"), (20, None), (30, "all")):
        checkpoint = quell.Checkpoint(path, resume=True)
        result = quell.fit(model, quell.FullRank(3), steps=steps, mesh=mesh, checkpoint=checkpoint, **options)
    whole = quell.fit(model, quell.FullRank(3), steps=30, **options)
    np.testing.assert_allclose(np.asarray(result.params.loc), whole.params.loc, rtol=1e-4, atol=1e-6)


def check_what_does_not_divide_is_refused():
    for sampler in (quell.Sampler(1, 12), quell.Sampler(8, 12, shared=True)):
        with pytest.raises(ValueError, match=r"`batch_size`.*got 12"):
            quell.fit(own_rows(), quell.FullRank(4), mesh="all", sampler=sampler, key=jax.random.key(0))


def check_a_warm_start_is_the_same():
    """On a random subset of the rows, which is gathered; with a lower bound for what counts as many data."""
    rng, usual = np.random.default_rng(2), warm_start.LEAST_NUMBERS
    model = quell.logistic_regression(rng.normal(size=(4096, 3)), rng.integers(0, 2, size=4096))
    warm_start.LEAST_NUMBERS = 1
    spread, alone = (quell.fit(model, quell.FullRank(3), mesh=mesh, key=jax.random.key(0)) for mesh in ("all", None))
    warm_start.LEAST_NUMBERS = usual
    assert "random data" in spread.choice.reason
    np.testing.assert_allclose(np.asarray(spread.params.loc), alone.params.loc, rtol=1e-4, atol=1e-6)


def check_a_program_runs_where_its_data_are():
    double, there = tiered_jit(lambda x: 2 * x), jax.devices()[-1]
    found = double(jax.device_put(np.arange(3.0), there))
    assert found.devices() == {there}
    np.testing.assert_array_equal(found, [0.0, 2.0, 4.0])
    model = own_rows()
    result = quell.fit(eqx.filter_shard(model, there), quell.FullRank(4), key=jax.random.key(0))
    assert result.params.loc.devices() == {there}
    alone = quell.fit(model, quell.FullRank(4), key=jax.random.key(0))
    np.testing.assert_allclose(np.asarray(result.params.loc), alone.params.loc, rtol=1e-4, atol=1e-5)


def own_rows():
    """This process's part of the same rows, in the same order."""
    rng = np.random.default_rng(0)
    features, labels = rng.normal(size=(64, 4)), rng.integers(0, 2, size=64)
    own = slice(*(64 * k // jax.process_count() for k in (jax.process_index(), jax.process_index() + 1)))
    return quell.logistic_regression(features[own], labels[own])


if __name__ == "__main__":
    main(*sys.argv[1:])
