"""How a reference follows the policy, on a model of two weights."""

import pytest
import torch

from llm_envs.trainers.functional.references import (
    KLTriggeredUpdate,
    copy_weights,
    create_ema_update,
    create_periodic_update,
    freeze,
    frozen_copy,
    keep_reference,
)


def model(weight):
    layer = torch.nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        layer.weight.fill_(weight)
    return torch.nn.Sequential(layer, torch.nn.Dropout(0.5))


def weight_of(reference):
    return reference[0].weight[0, 0].item()


def test_a_frozen_copy_has_weights_of_its_own_and_no_dropout():
    policy = model(1.0)
    reference = frozen_copy(policy)
    with torch.no_grad():
        policy[0].weight.fill_(5.0)
    assert weight_of(keep_reference(reference, policy, step=1, kl=9.0)) == 1.0
    assert not reference[0].weight.requires_grad
    assert not reference[1].training
    assert policy[0].weight.requires_grad
    assert policy[1].training


def test_a_shared_reference_is_frozen_where_it_stands():
    one = model(1.0)
    assert freeze(one) is one
    assert not one[0].weight.requires_grad


def test_moving_average():
    policy, update = model(5.0), create_ema_update(0.75)
    reference = update(frozen_copy(model(1.0)), policy, step=1, kl=0.0)
    assert weight_of(reference) == 2.0  # 0.75 * 1 + 0.25 * 5
    assert weight_of(update(reference, policy, step=2, kl=0.0)) == 2.75
    assert weight_of(policy) == 5.0


def test_periodic_copies():
    policy, reference, update = model(5.0), frozen_copy(model(1.0)), create_periodic_update(3)
    seen = [weight_of(update(reference, policy, step=step, kl=0.0)) for step in (0, 1, 2, 3)]
    assert seen == [1.0, 1.0, 1.0, 5.0]


def test_copies_when_enough_kl_has_come_together_and_resumes():
    policy, reference = model(5.0), frozen_copy(model(1.0))
    update = KLTriggeredUpdate(1.0)
    assert weight_of(update(reference, policy, step=1, kl=0.5)) == 1.0
    resumed = KLTriggeredUpdate(1.0)
    resumed.load_state_dict(update.state_dict())
    assert weight_of(resumed(reference, policy, step=2, kl=0.25)) == 1.0
    assert weight_of(resumed(reference, policy, step=3, kl=0.25)) == 5.0
    assert resumed.state_dict() == {"accumulated_kl": 0.0}


def test_buffers_come_along():
    policy, reference = torch.nn.BatchNorm1d(1), frozen_copy(torch.nn.BatchNorm1d(1))
    policy.running_mean.fill_(3.0)
    copy_weights(reference, policy)
    assert reference.running_mean.item() == 3.0


def test_bad_settings_and_other_models_are_refused():
    with pytest.raises(ValueError, match=r"decay is 1\.0"):
        create_ema_update(1.0)
    with pytest.raises(ValueError, match="at least 1 step"):
        create_periodic_update(0)
    with pytest.raises(ValueError, match="above 0 nats"):
        KLTriggeredUpdate(0.0)
    with pytest.raises(ValueError, match="weight"):
        copy_weights(model(1.0), torch.nn.Linear(2, 1))
