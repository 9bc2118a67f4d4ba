# SPDX-License-Identifier: Apache-2.0
"""Large models as a NumPyro user would write them, with simulated twins of the data that they were made for."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

sample: Any = numpyro.sample
"""Whose result may be used as an array."""


class LargeModel(NamedTuple):
    """A NumPyro model and the arguments of its call."""

    model: Callable[..., Any]
    data: dict[str, Any]


def bradley_terry(num_players: int = 5013, num_matches: int = 164_936) -> LargeModel:
    """Skills of players from who won against whom, in the numbers of half a century of professional tennis."""
    rng = np.random.default_rng(2018)
    skill = 0.9 * rng.normal(size=num_players)
    often = rng.dirichlet(0.2 * np.ones(num_players))  # a few play most of the matches
    first = rng.choice(num_players, num_matches, p=often)
    second = (first + rng.integers(1, num_players, num_matches)) % num_players
    wins = rng.uniform(size=num_matches) < 1 / (1 + np.exp(skill[second] - skill[first]))
    data = {
        "winner": jnp.asarray(np.where(wins, first, second)),
        "loser": jnp.asarray(np.where(wins, second, first)),
        "num_players": num_players,
    }

    def model(winner, loser, num_players):
        sigma = sample("sigma", dist.HalfNormal(1.0))
        with numpyro.plate("players", num_players):
            skill = sample("skill", dist.Normal(0.0, sigma))
        with numpyro.plate("matches", len(winner)):
            sample("win", dist.Bernoulli(logits=skill[winner] - skill[loser]), obs=jnp.ones(len(winner)))

    return LargeModel(model, data)


def households(num_sites: int = 7, num_households: int = 35_000) -> LargeModel:
    """Profits of households with and without a loan: below zero, zero or above, with log-normal tails."""
    rng = np.random.default_rng(2019)
    site = rng.choice(num_sites, num_households, p=rng.dirichlet(3.0 * np.ones(num_sites)))
    loan = rng.integers(0, 2, num_households)
    chances = rng.dirichlet([1.0, 3.0, 10.0], num_sites)
    kind = np.array([rng.choice(3, p=chances[s]) for s in site])
    location = rng.normal([4.5, 4.5], 1.0, (num_sites, 2))
    spread = np.exp(0.2 * rng.normal(size=(num_sites, 2)))
    tail = (kind == 2).astype(int)
    size = np.exp(location[site, tail] + 0.1 * loan + spread[site, tail] * rng.normal(size=num_households))
    profit = np.where(kind == 1, 0.0, np.where(kind == 0, -size, size))
    has_size = profit != 0
    data = {
        "site": jnp.asarray(site),
        "loan": jnp.asarray(loan, float),
        "kind": jnp.asarray(kind),
        "tail": jnp.asarray(tail[has_size]),
        "site_of_size": jnp.asarray(site[has_size]),
        "loan_of_size": jnp.asarray(loan[has_size], float),
        "log_size": jnp.asarray(np.log(size[has_size])),
        "num_sites": num_sites,
    }

    def varying(name, num_sites, width, scale):
        """Coefficients that vary between sites around a common mean."""
        mean = sample(f"{name}_mean", dist.Normal(0.0, scale).expand([width]).to_event(1))
        spread = sample(f"{name}_spread", dist.HalfCauchy(1.0).expand([width]).to_event(1))
        with numpyro.plate(f"{name}_sites", num_sites):
            return sample(name, dist.Normal(mean, spread).to_event(1))

    def model(site, loan, kind, tail, site_of_size, loan_of_size, log_size, num_sites):
        base, effect = (varying(name, num_sites, 2, 5.0) for name in ("kind_base", "kind_effect"))
        logits = jnp.pad(base[site] + loan[:, None] * effect[site], ((0, 0), (1, 0)))
        with numpyro.plate("households", len(kind)):
            sample("kind", dist.Categorical(logits=logits), obs=kind)
        location, shift = (varying(name, num_sites, 2, 10.0) for name in ("location", "location_effect"))
        log_scale, log_shift = (varying(name, num_sites, 2, 5.0) for name in ("scale", "scale_effect"))
        mean = location[site_of_size, tail] + loan_of_size * shift[site_of_size, tail]
        scale = jnp.exp(log_scale[site_of_size, tail] + loan_of_size * log_shift[site_of_size, tail])
        with numpyro.plate("sizes", len(log_size)):
            sample("log_size", dist.Normal(mean, scale), obs=log_size)

    return LargeModel(model, data)


def crossed(num_rows: int = 100_000, num_users: int = 1_000, num_items: int = 400) -> LargeModel:
    """A logistic regression with effects of users and of items, which cross."""
    rng = np.random.default_rng(2020)
    user, item = rng.integers(0, num_users, num_rows), rng.integers(0, num_items, num_rows)
    x = rng.normal(size=(num_rows, 5))
    logits = -0.5 + x @ np.array([0.5, -0.5, 0.3, 0.0, 0.1])
    logits += 0.8 * rng.normal(size=num_users)[user] + 0.5 * rng.normal(size=num_items)[item]
    y = (rng.uniform(size=num_rows) < 1 / (1 + np.exp(-logits))).astype(int)
    data = {
        "user": jnp.asarray(user),
        "item": jnp.asarray(item),
        "x": jnp.asarray(x),
        "y": jnp.asarray(y),
        "num_users": num_users,
        "num_items": num_items,
    }

    def model(user, item, x, y, num_users, num_items):
        intercept = sample("intercept", dist.Normal(0.0, 2.0))
        slopes = sample("slopes", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
        user_scale = sample("user_scale", dist.HalfNormal(1.0))
        item_scale = sample("item_scale", dist.HalfNormal(1.0))
        with numpyro.plate("users", num_users):
            of_user = sample("of_user", dist.Normal(0.0, user_scale))
        with numpyro.plate("items", num_items):
            of_item = sample("of_item", dist.Normal(0.0, item_scale))
        with numpyro.plate("rows", len(y)):
            logits = intercept + x @ slopes + of_user[user] + of_item[item]
            sample("y", dist.Bernoulli(logits=logits), obs=y)

    return LargeModel(model, data)


def _regression(num_rows: int, freedom: float) -> dict[str, Any]:
    rng = np.random.default_rng(2021)
    x = rng.normal(size=(num_rows, 20)).astype(np.float32)
    y = x @ rng.normal(size=20) + 2.0 * rng.standard_t(freedom, size=num_rows)
    return {"x": jnp.asarray(x), "y": jnp.asarray(y, jnp.float32)}


def noise_scale(num_rows: int = 1_000_000) -> LargeModel:
    """A linear regression with unknown noise."""

    def model(x, y):
        scale = sample("scale", dist.HalfNormal(5.0))
        slopes = sample("slopes", dist.Normal(0.0, 3.0).expand([x.shape[1]]).to_event(1))
        with numpyro.plate("rows", len(y)):
            sample("y", dist.Normal(x @ slopes, scale), obs=y)

    return LargeModel(model, _regression(num_rows, 1000.0))


def robust(num_rows: int = 1_000_000) -> LargeModel:
    """The same with outliers: unknown scale and degrees of freedom."""

    def model(x, y):
        scale, freedom = sample("scale", dist.HalfNormal(5.0)), sample("freedom", dist.Gamma(2.0, 0.1))
        slopes = sample("slopes", dist.Normal(0.0, 3.0).expand([x.shape[1]]).to_event(1))
        with numpyro.plate("rows", len(y)):
            sample("y", dist.StudentT(freedom, x @ slopes, scale), obs=y)

    return LargeModel(model, _regression(num_rows, 4.0))


MODELS: dict[str, Callable[[], LargeModel]] = {
    "bradley-terry": bradley_terry,
    "households": households,
    "crossed": crossed,
    "noise-scale": noise_scale,
    "robust": robust,
}
