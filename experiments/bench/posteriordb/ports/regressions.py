# SPDX-License-Identifier: Apache-2.0
"""Linear regressions with flat priors on the coefficients."""

import functools

import numpy as np
import numpyro
import numpyro.distributions as dist

from experiments.bench.posteriordb.ports.port import Port, flat, flat_positive, port, same_names


def columns(*given):
    """A design matrix with an intercept."""
    arrays = [np.asarray(column, float) for column in given]
    return np.stack([np.ones_like(arrays[0]), *arrays], axis=1)


def regression(x, y, half_cauchy=None):
    """Y ~ normal(x beta, sigma); beta flat; sigma flat, or half-Cauchy as the kidiq models have it."""
    beta = numpyro.sample("beta", flat((x.shape[1],)))
    sigma = numpyro.sample("sigma", flat_positive() if half_cauchy is None else dist.HalfCauchy(half_cauchy))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ beta, sigma), obs=y)


REGRESSION = same_names("beta", "sigma")


def _regression(name, columns_of, response, half_cauchy=None):
    @port(name)
    def make(d):
        x, y = columns(*columns_of(d)), np.asarray(response(d), float)
        model = regression if half_cauchy is None else functools.partial(regression, half_cauchy=half_cauchy)
        return Port(model, (x, y), REGRESSION)


def _z(v, times=1.0):
    return (v - np.mean(v)) / (times * np.std(v, ddof=1))


def _log_earn(d):
    return np.log(d["earn"])


_regression("earnings-earn_height", lambda d: [d["height"]], lambda d: d["earn"])
_regression("earnings-log10earn_height", lambda d: [d["height"]], lambda d: np.log10(d["earn"]))
_regression("earnings-logearn_height", lambda d: [d["height"]], _log_earn)
_regression("earnings-logearn_height_male", lambda d: [d["height"], d["male"]], _log_earn)
_regression("earnings-logearn_interaction", lambda d: [d["height"], d["male"], d["height"] * d["male"]], _log_earn)
_regression(
    "earnings-logearn_interaction_z",
    lambda d: [_z(d["height"]), d["male"], _z(d["height"]) * d["male"]],
    _log_earn,
)
_regression("earnings-logearn_logheight_male", lambda d: [np.log(d["height"]), d["male"]], _log_earn)


def _kid(d):
    return d["kid_score"]


_regression(
    "kidiq-kidscore_interaction", lambda d: [d["mom_hs"], d["mom_iq"], d["mom_hs"] * d["mom_iq"]], _kid, half_cauchy=2.5
)
_regression("kidiq-kidscore_momhs", lambda d: [d["mom_hs"]], _kid, half_cauchy=2.5)
_regression("kidiq-kidscore_momhsiq", lambda d: [d["mom_hs"], d["mom_iq"]], _kid, half_cauchy=2.5)
_regression("kidiq-kidscore_momiq", lambda d: [d["mom_iq"]], _kid, half_cauchy=2.5)


def _with_product(a, b):
    return [a, b, a * b]


_regression(
    "kidiq_with_mom_work-kidscore_interaction_c",
    lambda d: _with_product(d["mom_hs"] - np.mean(d["mom_hs"]), d["mom_iq"] - np.mean(d["mom_iq"])),
    _kid,
)
_regression(
    "kidiq_with_mom_work-kidscore_interaction_c2",
    lambda d: _with_product(d["mom_hs"] - 0.5, d["mom_iq"] - 100.0),
    _kid,
)
_regression(
    "kidiq_with_mom_work-kidscore_interaction_z",
    lambda d: _with_product(_z(d["mom_hs"], 2.0), _z(d["mom_iq"], 2.0)),
    _kid,
)
_regression(
    "kidiq_with_mom_work-kidscore_mom_work",
    lambda d: [d["mom_work"] == 2, d["mom_work"] == 3, d["mom_work"] == 4],
    _kid,
)


def _log_weight(d):
    return np.log(d["weight"])


def _volume(d):
    return np.log(d["diam1"] * d["diam2"] * d["canopy_height"])


def _area(d):
    return np.log(d["diam1"] * d["diam2"])


def _shape(d):
    return np.log(d["diam1"] / d["diam2"])


_regression(
    "mesquite-logmesquite",
    lambda d: [
        *(np.log(d[name]) for name in ("diam1", "diam2", "canopy_height", "total_height", "density")),
        d["group"],
    ],
    _log_weight,
)
_regression("mesquite-logmesquite_logva", lambda d: [_volume(d), _area(d), d["group"]], _log_weight)
_regression(
    "mesquite-logmesquite_logvas",
    lambda d: [_volume(d), _area(d), _shape(d), np.log(d["total_height"]), np.log(d["density"]), d["group"]],
    _log_weight,
)
_regression(
    "mesquite-logmesquite_logvash",
    lambda d: [_volume(d), _area(d), _shape(d), np.log(d["total_height"]), d["group"]],
    _log_weight,
)
_regression("mesquite-logmesquite_logvolume", lambda d: [_volume(d)], _log_weight)
_regression(
    "mesquite-mesquite",
    lambda d: [d[name] for name in ("diam1", "diam2", "canopy_height", "total_height", "density", "group")],
    lambda d: d["weight"],
)


def _nes(d):
    ages = [d["age_discrete"] == k for k in (2, 3, 4)]
    return [d["real_ideo"], d["race_adj"], *ages, d["educ1"], d["gender"], d["income"]]


for _year in (1972, 1976, 1980, 1984, 1988, 1992, 1996, 2000):
    _regression(f"nes{_year}-nes", _nes, lambda d: d["partyid7"])
