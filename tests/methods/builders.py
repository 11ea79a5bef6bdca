"""One builder a method, at a strength that shows on the tiny models; tests/decoding/test_modes.py wants one of each."""

import warnings

import torch

import mgap


def mgap_(prior):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # alpha above 1
        return mgap.MGAP(prior, alpha=8.0)


def asd_(prior):
    drawn = torch.randn(2, 4, 3, prior.hidden_size, generator=torch.Generator().manual_seed(0))  # the tiny models' 3 blocks
    return mgap.ASD(steering=mgap.Steering.from_states(*drawn), lam_pos=1.0, lam_neg=1.0)


def tether_(prior):
    drawn = torch.randn(64, prior.hidden_size, generator=torch.Generator().manual_seed(0))
    return mgap.Tether(bank=mgap.Bank.of(drawn), rho=3.0)


def predicted_prior_(prior):
    drawn = torch.randn(prior.rank, prior.hidden_size + 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = mgap.PriorMap(drawn[:, 1:].contiguous(), drawn[:, 0].contiguous(), prior, count=0, r2=0.0, ridge=0.0)
    return mgap.PredictedPrior(found, rho=2.0)


# name in the registry, or of a variant -> the method, given a prior of the model
BUILDERS = {
    "mgap": mgap_,
    "predicted-prior": predicted_prior_,
    "asd": asd_,
    "bias": lambda _prior: mgap.Bias(shift=24.0, up=("is", "picture"), down=("the",)),
    "blind": lambda _prior: mgap.Blind(rho=3.0),
    "code": lambda _prior: mgap.CODE(k=2.0, length=6),
    "haltrapper": lambda _prior: mgap.HalTrapper(alpha=4.0, n=3, length=6),
    "icd": lambda _prior: mgap.ICD(alpha=4.0),
    "icd with vcd": lambda _prior: mgap.ICD(alpha=4.0, with_vcd=True, noise_step=999),
    "m3id": lambda _prior: mgap.M3ID(lam=0.4),
    "mod": lambda _prior: mgap.MoD(rho=0.1, theta=0.0, a2=30.0, beta=0.0),
    "opera": lambda _prior: mgap.OPERA(alpha=60.0, beams=3, candidates=3),
    "pai": lambda _prior: mgap.PAI(alpha=2.0, gamma=2.0, start=0),
    "prompt-prior": lambda prior: mgap.PromptPrior(prior=prior, rho=8.0),
    "tether": tether_,
    "vcd": lambda _prior: mgap.VCD(alpha=4.0, noise_step=999),
    "deco": lambda _prior: mgap.DeCo(alpha=40.0, layers=[1, 2]),
    "dola": lambda _prior: mgap.DoLa(layers=[1, 2]),
}


def build(name, prior):
    """A registered method at a strength that changes what a tiny model says."""
    return BUILDERS[name](prior)
