# SPDX-License-Identifier: Apache-2.0
"""Large models as a NumPyro user would write them, with simulated twins of the data that they were made for."""

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro import handlers

sample: Any = numpyro.sample
"""Whose result may be used as an array."""


class LargeModel(NamedTuple):
    """A NumPyro model and the arguments of its call.

    Args:
        model: of NumPyro.
        data: its arguments by name; integers are sizes.
        by_row: those that may be given for some rows only, with `num_rows`, the number of all.
    """

    model: Callable[..., Any]
    data: dict[str, Any]
    by_row: tuple[str, ...] = ()

    def split(self) -> tuple[dict[str, Any], dict[str, int]]:
        """Arrays, and sizes that have to be known when the model is traced."""
        sizes = {name: value for name, value in self.data.items() if isinstance(value, int)}
        return {name: value for name, value in self.data.items() if name not in sizes}, sizes


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


def some_of(num_rows: int | None, rows: Any) -> Any:
    """Some rows stand for all, if a number of all is given."""
    return contextlib.nullcontext() if num_rows is None else handlers.scale(scale=num_rows / len(rows))


def noise_scale(num_rows: int = 1_000_000) -> LargeModel:
    """A linear regression with unknown noise."""

    def model(x, y, num_rows=None):
        scale = sample("scale", dist.HalfNormal(5.0))
        slopes = sample("slopes", dist.Normal(0.0, 3.0).expand([x.shape[1]]).to_event(1))
        with numpyro.plate("rows", len(y)), some_of(num_rows, y):
            sample("y", dist.Normal(x @ slopes, scale), obs=y)

    return LargeModel(model, _regression(num_rows, 1000.0), ("x", "y"))


def robust(num_rows: int = 1_000_000) -> LargeModel:
    """The same with outliers: unknown scale and degrees of freedom."""

    def model(x, y, num_rows=None):
        scale, freedom = sample("scale", dist.HalfNormal(5.0)), sample("freedom", dist.Gamma(2.0, 0.1))
        slopes = sample("slopes", dist.Normal(0.0, 3.0).expand([x.shape[1]]).to_event(1))
        with numpyro.plate("rows", len(y)), some_of(num_rows, y):
            sample("y", dist.StudentT(freedom, x @ slopes, scale), obs=y)

    return LargeModel(model, _regression(num_rows, 4.0), ("x", "y"))


def occupancy(num_species: int = 400, num_sites: int = 60, num_visits: int = 5) -> LargeModel:
    """Which species live where, from visits that may miss them; whether one lives at a site is summed out."""
    rng = np.random.default_rng(2022)
    habitat, effort = rng.normal(size=(2, num_sites))
    centre, spread = np.array([-0.5, 0.5, -0.5, 0.3]), np.array([1.2, 0.8, 0.8, 0.3])
    of_species = centre + spread * rng.normal(size=(num_species, 4))
    species, site = (index.ravel() for index in np.indices((num_species, num_sites)))
    lives, seen = (
        1 / (1 + np.exp(-base[species] - slope[species] * x[site]))
        for base, slope, x in zip(of_species.T[::2], of_species.T[1::2], (habitat, effort), strict=True)
    )
    count = rng.binomial(num_visits, seen) * (rng.uniform(size=species.size) < lives)
    data = {
        "species": jnp.asarray(species),
        "habitat": jnp.asarray(habitat[site]),
        "effort": jnp.asarray(effort[site]),
        "count": jnp.asarray(count),
        "num_species": num_species,
        "num_visits": num_visits,
    }

    def model(species, habitat, effort, count, num_species, num_visits):
        mean = sample("mean", dist.Normal(0.0, 1.5).expand([4]).to_event(1))
        spread = sample("spread", dist.HalfNormal(1.0).expand([4]).to_event(1))
        with numpyro.plate("all_species", num_species):
            of_species = sample("of_species", dist.Normal(mean, spread).to_event(1))
        lives = of_species[species, 0] + of_species[species, 1] * habitat
        seen = of_species[species, 2] + of_species[species, 3] * effort
        with numpyro.plate("rows", len(count)):
            detections = dist.Binomial(num_visits, logits=seen)
            sample("count", dist.ZeroInflatedDistribution(detections, gate_logits=-lives), obs=count)

    return LargeModel(model, data)


def polls(num_states: int = 50, num_days: int = 250, num_pollsters: int = 80, num_polls: int = 2_000) -> LargeModel:
    """Support in states and in the nation, which walk at random from day to day, from polls with house effects."""
    rng = np.random.default_rng(2023)
    nation = np.cumsum(0.02 * rng.normal(size=num_days))
    state = 0.4 * rng.normal(size=(num_states, 1)) + np.cumsum(0.015 * rng.normal(size=(num_states, num_days)), axis=1)
    house = 0.08 * rng.normal(size=num_pollsters)
    pollster = rng.choice(num_pollsters, num_polls, p=rng.dirichlet(0.5 * np.ones(num_pollsters)))
    day = np.sort((num_days * rng.beta(2.0, 1.0, num_polls)).astype(int))  # more of them as the election nears
    where = rng.choice(num_states, num_polls, p=rng.dirichlet(np.ones(num_states)))
    is_national = rng.uniform(size=num_polls) < 0.3
    size = rng.integers(400, 1500, num_polls)
    logits = nation[day] + house[pollster] + np.where(is_national, 0.0, state[where, day])
    data = {
        "state": jnp.asarray(where),
        "of_state": jnp.asarray(1.0 - is_national),
        "day": jnp.asarray(day),
        "pollster": jnp.asarray(pollster),
        "size": jnp.asarray(size),
        "votes": jnp.asarray(rng.binomial(size, 1 / (1 + np.exp(-logits)))),
        "num_states": num_states,
        "num_days": num_days,
        "num_pollsters": num_pollsters,
    }

    def model(state, of_state, day, pollster, size, votes, num_states, num_days, num_pollsters):
        nation_step = sample("nation_step", dist.HalfNormal(0.05))
        state_step = sample("state_step", dist.HalfNormal(0.05))
        state_scale = sample("state_scale", dist.HalfNormal(0.5))
        house_scale = sample("house_scale", dist.HalfNormal(0.2))
        base = sample("base", dist.Normal(0.0, 0.5))
        nation = sample("nation", dist.GaussianRandomWalk(nation_step, num_days))
        with numpyro.plate("states", num_states):
            lean = sample("lean", dist.Normal(0.0, state_scale))
            drift = sample("drift", dist.GaussianRandomWalk(state_step, num_days))
        with numpyro.plate("pollsters", num_pollsters):
            house = sample("house", dist.Normal(0.0, house_scale))
        with numpyro.plate("polls", len(votes)):
            logits = base + nation[day] + house[pollster] + of_state * (lean[state] + drift[state, day])
            sample("votes", dist.Binomial(size, logits=logits), obs=votes)

    return LargeModel(model, data)


def horseshoe(num_rows: int = 400, num_features: int = 2_000) -> LargeModel:
    """A logistic regression on more features than rows, few of which matter: a regularised horseshoe."""
    rng = np.random.default_rng(2024)
    x = rng.normal(size=(num_rows, num_features))
    slopes = np.zeros(num_features)
    slopes[:10] = rng.choice([-1.0, 1.0], 10) * rng.uniform(1.0, 2.5, 10)
    y = (rng.uniform(size=num_rows) < 1 / (1 + np.exp(-x @ slopes))).astype(int)
    data = {"x": jnp.asarray(x), "y": jnp.asarray(y)}

    def model(x, y):
        num_rows, num_features = x.shape
        intercept = sample("intercept", dist.Normal(0.0, 2.0))
        overall = sample("overall", dist.HalfCauchy(2 * 10 / (num_features - 10) / num_rows**0.5))
        slab = sample("slab", dist.InverseGamma(2.0, 8.0))
        with numpyro.plate("features", num_features):
            local = sample("local", dist.HalfCauchy(1.0))
            raw = sample("raw", dist.Normal(0.0, 1.0))
        slopes = raw * overall * local / jnp.sqrt(1 + (overall * local) ** 2 / slab)
        with numpyro.plate("rows", num_rows):
            sample("y", dist.Bernoulli(logits=intercept + x @ slopes), obs=y)

    return LargeModel(model, data)


MODELS: dict[str, Callable[[], LargeModel]] = {
    "bradley-terry": bradley_terry,
    "households": households,
    "crossed": crossed,
    "noise-scale": noise_scale,
    "robust": robust,
    "occupancy": occupancy,
    "polls": polls,
    "horseshoe": horseshoe,
}

MILLION_ROWS = ("noise-scale", "robust")
"""Models that can be given some of their rows."""
