"""Verifiers as a stranger would write them: plain torch, one token at a time, no import of the library."""
import torch


def right(p, q, candidates, generator):
    target = p.clone()
    for i, x in enumerate(candidates.tolist()):
        u = torch.rand(1, generator=generator).item()
        if u * float(q[x]) < float(target[x]):
            return i, x
        target = torch.clamp(target - q, min=0)
        target = target / target.sum()
    return -1, torch.multinomial(target, 1, generator=generator).item()


def same_coin(p, q, candidates, generator):
    # subtly wrong: one coin for all candidates
    target, u = p.clone(), torch.rand(1, generator=generator).item()
    for i, x in enumerate(candidates.tolist()):
        if u * float(q[x]) < float(target[x]):
            return i, x
        target = torch.clamp(target - q, min=0)
        target = target / target.sum()
    return -1, torch.multinomial(target, 1, generator=generator).item()


def residual_of_one_token(p, q, candidates, generator):
    # subtly wrong: only the rejected token's draft mass is taken away
    target = p.clone()
    for i, x in enumerate(candidates.tolist()):
        u = torch.rand(1, generator=generator).item()
        if u * float(q[x]) < float(target[x]):
            return i, x
        target[x] = max(float(target[x] - q[x]), 0.0)
        target = target / target.sum()
    return -1, torch.multinomial(target, 1, generator=generator).item()


NOT_A_VERIFIER = 3
