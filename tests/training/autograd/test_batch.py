import torch

from logitsieve.training.autograd.batch import Randomness, StepRng


def test_seed_step_draw_and_place_decide_numbers_that_fill_the_interval() -> None:
    step = StepRng(key=3, step=5)
    assert torch.equal(step.uniforms(7, 2), StepRng(key=3, step=5).uniforms(8, 2)[:7])
    for other in (StepRng(4, 5), StepRng(3, 6)):
        assert not torch.equal(step.uniforms(7, 2), other.uniforms(7, 2))
    assert not torch.equal(step.uniforms(7, 2), step.uniforms(7, 1))
    random = Randomness(seed=9)
    first, second = random.next(), random.next()
    assert (first.step, second.step, random.step) == (0, 1, 2)
    random.step = 0
    assert random.next() == first
    drawn = StepRng(1, 0).uniforms(100_000)
    assert 0 <= float(drawn.min()) < float(drawn.max()) < 1
    counts = torch.histc(drawn, 20, 0, 1)
    assert float(((counts - 5000) ** 2 / 5000).sum()) < 19 + 4 * (2 * 19) ** 0.5
