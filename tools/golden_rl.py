"""What TRL computes for policy losses, preference losses, advantages and row masks.

    uv run --group oracle python tools/golden_rl.py

writes packages/dew-rl/tests/golden/trl.json. The trainers' own methods run unbound on namespaces that hold
what they read; advantages come from the statements of the GRPO trainer that compute them. Everything runs in
float64.
"""

from __future__ import annotations

import inspect
import json
import random
import textwrap
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

GOLDEN = Path(__file__).resolve().parent.parent / "packages/dew-rl/tests/golden/trl.json"
COMMAND = "uv run --group oracle python tools/golden_rl.py"
BUDGET = 7
POLICY: Mapping[str, dict[str, Any]] = {
    "seq_mean_token_mean": {"loss_type": "grpo"},
    "token_mean": {"loss_type": "dapo"},
    "token_mean_microbatch": {"loss_type": "bnpo"},
    "seq_mean_token_sum_norm": {"loss_type": "dr_grpo"},
    "seq_mean_token_sum": {"loss_type": "luspo"},
    "kl": {"loss_type": "dapo", "beta": 0.1},
    "kl_alone": {"loss_type": "grpo", "beta": 0.3, "scale": 0.0},
    "asymmetric": {"loss_type": "dapo", "epsilon_low": 0.1, "epsilon_high": 0.35},
    "dual": {"loss_type": "dapo", "delta": 1.6},
}
"""Case -> what differs from the stub's settings; `scale` multiplies the advantages."""
MASKS = [[1, 1, 1, 1, 1, 0], [1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 1], [1, 0, 0, 0, 0, 0]]
REWARDS = [[1.0, 0.0, 0.0, 1.0], [0.1, 0.7, 0.2, 0.9], [0.35, 0.35, 0.35, 0.35], [1.0, None, 0.0, 1.0]]
SECOND = [[0.0, 2.0, 1.0, 1.0], [0.5, 0.5, 0.5, 0.5], [1.0, 0.0, 1.0, 3.0], [0.2, None, 0.1, 0.9]]
WEIGHTS = [1.0, 0.5]


def policy_inputs() -> dict[str, Any]:
    """Log probabilities with ratios on both sides of every bound, ragged masks, both signs of advantage."""
    draw = random.Random(11)
    old = [[round(-draw.uniform(0.05, 3), 3) for _ in row] for row in MASKS]
    current = [[round(value + draw.gauss(0, 0.45), 3) for value in row] for row in old]
    reference = [[round(value + draw.gauss(0, 0.6), 3) for value in row] for row in old]
    return {
        "current": current,
        "old": old,
        "reference": reference,
        "mask": MASKS,
        "advantages": [1.2, -0.7, -1.5, 0.4],
    }


def policy_losses() -> dict[str, Any]:
    """The GRPO trainer's loss and its gradient at the current log probabilities, by case and level."""
    import torch
    from trl import GRPOTrainer

    inputs = policy_inputs()
    found: dict[str, Any] = {}
    for name, settings in POLICY.items():
        for level in ("token", "sequence"):
            current = torch.tensor(inputs["current"], dtype=torch.float64, requires_grad=True)
            stub = policy_stub(current, level, settings)
            loss = GRPOTrainer._compute_loss(stub, None, policy_batch(inputs, settings.get("scale", 1.0)))
            loss.backward()
            found[f"{name}/{level}"] = {"loss": loss.item(), "gradient": current.grad.tolist()}
    return found


def policy_stub(current: Any, level: str, settings: Mapping[str, Any]) -> SimpleNamespace:
    """What `GRPOTrainer._compute_loss` reads of a trainer whose model returned `current`."""
    import torch
    from trl import GRPOTrainer

    whole = {
        "loss_type": "grpo",
        "beta": 0.0,
        "epsilon_low": 0.2,
        "epsilon_high": 0.28,
        **{name: value for name, value in settings.items() if name not in ("delta", "scale")},
    }
    accelerator = SimpleNamespace(
        gather=lambda value: value,
        gather_for_metrics=lambda value: value,
        reduce=lambda value, reduction: value,
        num_processes=1,
        sync_gradients=True,
    )
    metrics: dict[str, Any] = {"train": _Lists(), "eval": _Lists()}
    return SimpleNamespace(
        **whole,
        importance_sampling_level=level,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        max_completion_length=BUDGET,
        current_gradient_accumulation_steps=1,
        use_vllm=False,
        vllm_importance_sampling_correction=False,
        aux_loss_enabled=False,
        _entropy_bonus_enabled=False,
        _metrics=metrics,
        model=SimpleNamespace(training=True),
        accelerator=accelerator,
        args=SimpleNamespace(
            delta=settings.get("delta"), use_bias_correction_kl=False, steps_per_generation=1
        ),
        get_off_policy_mask=GRPOTrainer.get_off_policy_mask,
        get_gamma_weights=GRPOTrainer.get_gamma_weights,
        _get_per_token_logps_and_entropies=lambda *_, **__: (current, torch.zeros_like(current), None),
    )


def policy_batch(inputs: Mapping[str, Any], scale: float) -> dict[str, Any]:
    """`inputs` as `_compute_loss` reads a batch."""
    import torch

    mask = torch.tensor(inputs["mask"], dtype=torch.float64)
    ids = torch.zeros(mask.shape, dtype=torch.long)
    return {
        "prompt_ids": ids[:, :1],
        "prompt_mask": ids[:, :1],
        "completion_ids": ids,
        "completion_mask": mask,
        "advantages": torch.tensor(inputs["advantages"], dtype=torch.float64) * scale,
        "old_per_token_logps": torch.tensor(inputs["old"], dtype=torch.float64),
        "ref_per_token_logps": torch.tensor(inputs["reference"], dtype=torch.float64),
        "num_items_in_batch": mask.sum(),
    }


class _Lists(dict[str, list[float]]):
    def __missing__(self, key: str) -> list[float]:
        self[key] = []
        return self[key]


def preference_inputs() -> dict[str, Any]:
    """Log probabilities of three pairs, chosen rows first, with responses of several lengths."""
    draw = random.Random(5)
    mask = [[1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 0, 0], [1, 0, 0, 0], [1, 1, 1, 1]]
    reference = [[round(-draw.uniform(0.05, 3), 3) * seen for seen in row] for row in mask]
    current = [
        [round(value + draw.gauss(0, 4), 3) * seen for value, seen in zip(row, seens, strict=True)]
        for row, seens in zip(reference, mask, strict=True)
    ]
    return {"current": current, "reference": reference, "mask": mask}


def preference_losses() -> dict[str, Any]:
    """The DPO trainer's loss and its gradient at the current log probabilities, by law and beta."""
    import torch
    from trl import DPOTrainer
    from trl.trainer import dpo_trainer

    dpo_trainer.disable_gradient_checkpointing = lambda *_: nullcontext()
    dpo_trainer.is_peft_model = lambda *_: False
    inputs = preference_inputs()
    mask = torch.tensor(inputs["mask"], dtype=torch.long)
    # The loss shifts the mask by one slot; its count of tokens does not, so the prompt's slot is 0.
    mask = torch.cat([torch.zeros_like(mask[:, :1]), mask], 1)
    found: dict[str, Any] = {}
    for law in ("sigmoid", "hinge", "ipo"):
        for beta in (0.1, 0.5):
            current = torch.tensor(inputs["current"], dtype=torch.float64, requires_grad=True)
            stub = preference_stub(current, torch.tensor(inputs["reference"], dtype=torch.float64), law, beta)
            batch = {
                "input_ids": torch.zeros_like(mask),
                "attention_mask": torch.ones_like(mask),
                "completion_mask": mask,
            }
            loss = DPOTrainer._compute_loss(stub, stub.model, batch, False)
            loss.backward()
            found[f"{law}/{beta}"] = {"loss": loss.item(), "gradient": current.grad.tolist()}
    return found


def preference_stub(current: Any, reference: Any, law: str, beta: float) -> SimpleNamespace:
    """What `DPOTrainer._compute_loss` reads of a trainer whose models returned these log probabilities."""
    import torch

    def outputs(values: Any) -> Any:
        zeros = torch.zeros_like(values)
        return SimpleNamespace(
            log_probs=values,
            entropy=zeros,
            mean_logits=zeros,
            is_top1=zeros.bool(),
            log_sum_sq_probs=zeros,
        )

    def model(**_: Any) -> Any:
        return outputs(current)

    model.training = True  # type: ignore[attr-defined]
    return SimpleNamespace(
        model=model,
        ref_model=lambda **_: outputs(reference),
        accelerator=SimpleNamespace(
            device="cpu", gather=lambda value: value, gather_for_metrics=lambda value: value
        ),
        aux_loss_enabled=False,
        ld_alpha=None,
        precompute_ref_logps=False,
        args=SimpleNamespace(gradient_checkpointing_kwargs=None),
        f_divergence_type="reverse_kl",
        loss_types=[law],
        loss_weights=[1.0],
        beta=beta,
        use_weighting=False,
        _metrics={"train": _Lists(), "eval": _Lists()},
        _total_train_tokens=0,
        _tp_size=1,
    )


def advantages() -> dict[str, Any]:
    """The GRPO trainer's advantages [groups, rows] by order and scale; a reward of None abstains."""
    import torch
    from trl import GRPOTrainer
    from trl.trainer import grpo_trainer

    source = textwrap.dedent(inspect.getsource(GRPOTrainer._generate_and_score_completions))
    start = source.index("unscorable_mask = torch.isnan(")
    end = source.index("advantages = torch.nan_to_num(advantages")
    statements = textwrap.dedent(" " * 4 + source[start:end]) + "advantages = torch.nan_to_num(advantages)\n"
    found: dict[str, Any] = {}
    for order in ("sum_then_normalize", "normalize_then_sum"):
        for scale in ("group", "none"):
            scope = {
                **vars(grpo_trainer),
                "self": SimpleNamespace(
                    multi_objective_aggregation=order,
                    scale_rewards=scale,
                    reward_weights=torch.tensor(WEIGHTS, dtype=torch.float64),
                    reward_funcs=[None, None],
                ),
                "rewards_per_func": _rewards(),
                "num_generations": 4,
                "device": "cpu",
            }
            exec(statements, scope)
            found[f"{order}/{scale}"] = scope["advantages"].reshape(4, 4).tolist()
    return found


def leave_one_out() -> list[list[float]]:
    """The RLOO trainer's advantages [groups, rows] of the first rewards; a reward of None abstains."""
    from trl.trainer import rloo_trainer

    source = textwrap.dedent(inspect.getsource(rloo_trainer.RLOOTrainer._generate_and_score_completions))
    start = source.index("grouped_rewards = rewards.view(")
    end = source.index("is_std_zero = ")
    scope = {
        **vars(rloo_trainer),
        "self": SimpleNamespace(normalize_advantages=False),
        "rewards": _rewards()[:, 0],
        "num_generations": 4,
    }
    exec(textwrap.dedent(" " * 4 + source[start:end]), scope)
    return scope["advantages"].reshape(4, 4).tolist()


def _rewards() -> Any:
    import torch

    both = [
        [float("nan") if value is None else value for group in rewards for value in group]
        for rewards in (REWARDS, SECOND)
    ]
    return torch.tensor(both, dtype=torch.float64).T


def kept_rows() -> dict[str, Any]:
    """The rows that the trainer's off-policy mask keeps, by threshold."""
    import torch
    from trl import GRPOTrainer

    inputs = policy_inputs()
    tensors = {name: torch.tensor(value, dtype=torch.float64) for name, value in inputs.items()}
    return {
        str(threshold): GRPOTrainer.get_off_policy_mask(
            -tensors["advantages"].abs()[:, None],
            tensors["current"],
            tensors["old"],
            tensors["mask"],
            threshold,
        )[:, 0].tolist()
        for threshold in (-0.2, 0.0, 0.1, 0.5)
    }


def compute() -> dict[str, Any]:
    """Everything the golden file holds."""
    import torch
    import trl

    return {
        "library": f"trl {trl.__version__}, torch {torch.__version__.split('+')[0]}",
        "command": COMMAND,
        "dtype": "float64",
        "tolerance": 1e-6,
        "budget": BUDGET,
        "policy": {"inputs": policy_inputs(), "cases": {k: dict(v) for k, v in POLICY.items()}},
        "policy_losses": policy_losses(),
        "preference": preference_inputs(),
        "preference_losses": preference_losses(),
        "rewards": {"first": REWARDS, "second": SECOND, "weights": WEIGHTS, "epsilon": 1e-4},
        "advantages": {**advantages(), "leave_one_out": leave_one_out()},
        "kept_rows": kept_rows(),
    }


if __name__ == "__main__":
    GOLDEN.parent.mkdir(parents=True, exist_ok=True)
    GOLDEN.write_text(json.dumps(compute(), indent=1, sort_keys=True) + "\n")
    print(f"wrote {GOLDEN}")
