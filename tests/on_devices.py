# SPDX-License-Identifier: Apache-2.0
"""Fits on a mesh, run by tests in a process of its own: the number of devices is fixed before JAX starts.

Usage: on_devices.py OUT.npz STEPS MESHES [PORT NUM_PROCESSES PROCESS_ID]

With fewer than 100 steps it does the first two fits only.
"""

import sys

import jax
import numpy as np
import optax
from jax.sharding import Mesh

import quell


def main(out, steps, sizes, port=None, num=None, process=None):
    if port is not None:
        jax.distributed.initialize(
            f"localhost:{port}", int(num), int(process), heartbeat_timeout_seconds=20, shutdown_timeout_seconds=20
        )
    found = {}
    for size in map(int, sizes.split(",")):
        mesh = "all" if port else Mesh(np.array(jax.devices()[:size]), ("rows",)) if size else None
        for name, params in fits(int(steps), mesh).items():
            found |= {f"{size} {name} {k}": np.asarray(leaf) for k, leaf in enumerate(jax.tree.leaves(params))}
    if jax.process_index() == 0:
        np.savez(out, **found)


def fits(steps, mesh):
    """Parameters of fits with all variates of the paper, the joint quadratic, and what is chosen by default."""
    model = own_rows()
    joint = quell.ControlVariate(
        quell.Data(), quell.Reparameterization(), quell.ClosedForm(full_data=True), quell.AnchoredQuadratic(every=20)
    )
    shared = {"steps": steps, "key": jax.random.key(3), "mesh": mesh}
    adam = {"optimizer": optax.adam(0.01), "sampler": quell.Sampler(1, 16)}
    family = quell.FullRank(model.dim)
    by_name = {
        "paper": quell.fit(model, family, variates=quell.paper.variates("S7"), **adam, **shared),
        "joint": quell.fit(model, family, variates=[joint], **adam, **shared),
    }
    if steps >= 100:
        by_name |= {
            "auto": quell.fit(model, family, **shared),
            "default": quell.fit(model, family, variates=[joint], steps=steps, key=jax.random.key(4), mesh=mesh),
            "many": quell.fit(model, family, variates=[joint], sampler=quell.Sampler(8, 2), **shared),
        }
    return {name: result.params for name, result in by_name.items()}


def own_rows():
    """This process's part of the same rows, in the same order."""
    rng = np.random.default_rng(0)
    features, labels = rng.normal(size=(64, 4)), rng.integers(0, 2, size=64)
    own = slice(*(64 * k // jax.process_count() for k in (jax.process_index(), jax.process_index() + 1)))
    return quell.logistic_regression(features[own], labels[own])


if __name__ == "__main__":
    main(*sys.argv[1:])
