# SPDX-License-Identifier: Apache-2.0
"""One fit by several processes, each with rows of its own.

On two terminals of one machine:

    XLA_FLAGS=--xla_force_host_platform_device_count=2 python examples/many_hosts.py localhost:7777 2 0
    XLA_FLAGS=--xla_force_host_platform_device_count=2 python examples/many_hosts.py localhost:7777 2 1

On several hosts, give the address of the first one; on a cluster that JAX knows (Slurm, MPI), give no arguments. Each
process makes, or loads, only its own rows, in equal-sized shards; all other arguments are identical. The first process
shows progress and writes `many_hosts.quell`. Should a process die, the others end within a minute, and the same
commands, for the same or for another number of processes that divides 40, resume from that file.
"""

import sys

import jax
import numpy as np

import quell

NUM_ROWS, DIM = 200_000, 20


def main(address: str | None = None, num_processes: str = "0", process_id: str = "0") -> None:
    """Connect to the others, fit, and let the first process print."""
    named = () if address is None else (address, int(num_processes), int(process_id))
    jax.distributed.initialize(*named, heartbeat_timeout_seconds=20, shutdown_timeout_seconds=20)
    features, labels = own_rows()
    model = quell.logistic_regression(features, labels)
    checkpoint = quell.Checkpoint("many_hosts.quell", resume=True)
    result = quell.fit(model, quell.FullRank(DIM), mesh="all", checkpoint=checkpoint, key=jax.random.key(0))
    if jax.process_index() == 0:
        print(f"{jax.process_count()} processes with {jax.device_count()} devices:")
        print(result)
        print("mean:", np.asarray(result.params.loc).round(3))


def own_rows() -> tuple[np.ndarray, np.ndarray]:
    """This process's shard of the rows: made in blocks, so that the data are the same for any number of processes."""
    blocks = np.array_split(np.arange(40), jax.process_count())[jax.process_index()]
    features, labels = zip(*(block_of_rows(number) for number in blocks), strict=True)
    return np.concatenate(features), np.concatenate(labels)


def block_of_rows(number: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(number)
    features = rng.normal(size=(NUM_ROWS // 40, DIM))
    chance = 1.0 / (1.0 + np.exp(-features @ np.linspace(-1.0, 1.0, DIM)))
    return features, (rng.random(len(features)) < chance).astype(int)


if __name__ == "__main__":
    main(*sys.argv[1:])
