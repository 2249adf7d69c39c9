"""The small language model: shares of any number of ranks are one batch, and their mean gradient is its gradient."""

from __future__ import annotations

import inspect

import pytest
import torch

from labkit.rank import tiny

every_world = pytest.mark.parametrize("n", [1, 2, 3, 4, 7, 16])


def model(seed: int = 0) -> tiny.Model:
    torch.manual_seed(seed)
    return tiny.Model()


def gradients(of: tiny.Model, batch: tiny.Batch) -> list[torch.Tensor]:
    return list(torch.autograd.grad(tiny.loss(of, batch), list(of.parameters())))


def train(of: tiny.Model, steps: int, world_size: int = 1) -> tiny.Model:
    """Train as ranks do that average their gradients; one rank is plain SGD on the whole batch."""
    for step in range(steps):
        shares = [gradients(of, tiny.batch(step, r, world_size)) for r in range(world_size)]
        with torch.no_grad():
            for p, *grads in zip(of.parameters(), *shares, strict=True):
                p -= sum(grads) / world_size
    return of


@every_world
@pytest.mark.parametrize("size", [240, 50])
def test_the_shares_of_all_ranks_are_the_whole_batch(n: int, size: int):
    shares = [tiny.batch(7, rank, n, size) for rank in range(n)]
    for whole, parts in zip(tiny.batch(7, size=size), zip(*shares, strict=True), strict=True):
        assert torch.equal(torch.cat(parts), whole)
    rows = [len(targets) for _, targets in shares]
    assert sum(rows) == size
    assert max(rows) - min(rows) == (size % n > 0)


@every_world
def test_the_shares_of_the_held_out_text_are_all_of_it(n: int):
    shares = [tiny.validation(rank, n) for rank in range(n)]
    for whole, parts in zip(tiny.validation(), zip(*shares, strict=True), strict=True):
        assert torch.equal(torch.cat(parts), whole)


def test_a_batch_is_characters_that_follow_one_another_and_every_step_has_others():
    inputs, targets = tiny.batch(0)
    assert (inputs.dtype, inputs.shape, targets.shape) == (torch.int64, (240, tiny.CONTEXT), (240,))
    assert inputs.is_contiguous()
    assert targets.is_contiguous()
    text = "".join(tiny.CHARACTERS[i] for i in tiny._text())
    for row, target in zip(inputs, targets, strict=True):
        assert "".join(tiny.CHARACTERS[i] for i in [*row, target]) in text
    assert "  " not in text
    assert torch.equal(inputs, tiny.batch(0)[0])
    assert not torch.equal(inputs, tiny.batch(1)[0])


@pytest.mark.parametrize("size", [240, 1, 2000])
def test_no_two_rows_of_a_batch_share_a_character_and_none_is_held_out(size: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tiny, "_text", lambda: torch.arange(100_000))  # rows hold their places
    held_out = set(tiny.validation()[0].flatten().tolist())
    for step in range(3):
        inputs, targets = tiny.batch(step, size=size)
        places = [*inputs.flatten().tolist(), *targets.tolist()]
        assert len(set(places)) == len(places)
        assert not set(places) & held_out


@pytest.mark.parametrize("n", [2, 3, 4, 8])
def test_the_mean_of_the_ranks_gradients_is_the_gradient_of_the_whole_batch(n: int):
    ours = model()
    shares = [gradients(ours, tiny.batch(3, rank, n)) for rank in range(n)]
    for whole, *grads in zip(gradients(ours, tiny.batch(3)), *shares, strict=True):
        torch.testing.assert_close(sum(grads) / n, whole)
        assert not torch.allclose(grads[0], grads[1])


def test_models_of_one_seed_are_equal_and_stay_so_over_equal_batches():
    one, other = train(model(), 3), train(model(), 3)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    assert not torch.equal(model(1).output.weight, model(2).output.weight)


def test_ranks_that_average_their_gradients_learn_as_one_process_with_all_data_does():
    torch.testing.assert_close(
        [p.data for p in train(model(), 20, world_size=4).parameters()],
        [p.data for p in train(model(), 20).parameters()],
        rtol=1e-4,
        atol=1e-5,
    )


def test_it_learns_and_four_times_the_data_teaches_more():
    def score(of: tiny.Model) -> float:
        return tiny.loss(of, tiny.validation()).item()

    whole, alone = train(model(), 100), model()
    for step in range(100):
        grads = gradients(alone, tiny.batch(step, 2, 4))
        with torch.no_grad():
            for p, grad in zip(alone.parameters(), grads, strict=True):
                p -= grad
    assert score(whole) + 0.1 < score(alone) < score(model()) - 0.5


def test_a_sample_goes_on_from_its_prompt_and_repeats_itself():
    ours = model()
    said = tiny.sample(ours, "The ", 12)
    assert said.startswith("The ")
    assert len(said) == 16
    assert set(said[4:]) <= set(tiny.CHARACTERS)
    assert tiny.sample(ours, "The ", 12) == said
    assert tiny.sample(ours, "The ", 12, seed=1) != said
    assert tiny.sample(ours, "a#", 0) == "a#"


def test_the_model_has_as_many_parameters_as_it_says_and_fits_on_a_page():
    assert sum(p.numel() for p in model().parameters()) == 12_444
    assert "12,444 parameters in 5 tensors" in (tiny.Model.__doc__ or "")
    assert len(list(model().parameters())) == 5
    assert len(inspect.getsource(tiny.Model).splitlines()) <= 15
    assert len(tiny.CHARACTERS) == len(set(tiny.CHARACTERS)) == 36


@pytest.mark.parametrize(("layers", "width", "parameters", "tensors"), [(2, 32, 28_068, 30), (4, 256, 3_180_068, 54)])
def test_a_transformer_takes_the_same_batches_and_is_as_large_as_it_says(
    layers: int, width: int, parameters: int, tensors: int
):
    ours = tiny.Transformer(layers, width)
    assert sum(p.numel() for p in ours.parameters()) == parameters
    assert len(list(ours.parameters())) == tensors
    assert ours(tiny.batch(0, size=5)[0]).shape == (5, 36)


def test_a_transformer_learns():
    torch.manual_seed(0)
    ours = tiny.Transformer()
    optimizer = torch.optim.Adam(ours.parameters(), lr=0.01)
    before = tiny.loss(ours, tiny.validation()).item()
    for step in range(60):
        optimizer.zero_grad()
        tiny.loss(ours, tiny.batch(step)).backward()
        optimizer.step()
    assert before > 3.4
    assert tiny.loss(ours, tiny.validation()).item() < 2.6


def test_a_position_sees_none_after_it():
    torch.manual_seed(0)
    block = tiny.Block(32, 4)
    x = torch.randn(2, tiny.CONTEXT, 32)
    later = x.clone()
    later[:, 5:] += 1
    assert torch.allclose(block(x)[:, :5], block(later)[:, :5])
    assert not torch.allclose(block(x)[:, 5:], block(later)[:, 5:])
