"""The parts of a decoding loop: logits transforms, stopping criteria and strategies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dew.lazy import lazy

__getattr__, __dir__ = lazy(
    __name__,
    {
        "BeginSuppressTokens": "dew.sampling.decoding.suppression:dew-lm",
        "EndOfSequence": "dew.sampling.decoding.stopping:dew-lm",
        "EpsilonCutoff": "dew.sampling.decoding.truncation:dew-lm",
        "EtaCutoff": "dew.sampling.decoding.truncation:dew-lm",
        "ExponentialDecayLengthPenalty": "dew.sampling.decoding.lengths:dew-lm",
        "ForcedBOS": "dew.sampling.decoding.lengths:dew-lm",
        "ForcedEOS": "dew.sampling.decoding.lengths:dew-lm",
        "FrequencyPenalty": "dew.sampling.decoding.penalties:dew-lm",
        "Greedy": "dew.sampling.decoding.filters:dew-lm",
        "LogitsTransform": "dew.sampling.decoding.parts:dew-lm",
        "MaxLength": "dew.sampling.decoding.stopping:dew-lm",
        "MaxNewTokens": "dew.sampling.decoding.stopping:dew-lm",
        "MinLength": "dew.sampling.decoding.lengths:dew-lm",
        "MinNewTokens": "dew.sampling.decoding.lengths:dew-lm",
        "MinP": "dew.sampling.decoding.filters:dew-lm",
        "NoRepeatNGram": "dew.sampling.decoding.ngrams:dew-lm",
        "PresencePenalty": "dew.sampling.decoding.penalties:dew-lm",
        "PromptNoRepeatNGram": "dew.sampling.decoding.ngrams:dew-lm",
        "PromptRepetitionPenalty": "dew.sampling.decoding.penalties:dew-lm",
        "RemoveInvalidValues": "dew.sampling.decoding.repair:dew-lm",
        "Renormalize": "dew.sampling.decoding.repair:dew-lm",
        "RepetitionPenalty": "dew.sampling.decoding.penalties:dew-lm",
        "SequenceBias": "dew.sampling.decoding.sequences:dew-lm",
        "Sample": "dew.sampling.text.sample:dew-lm",
        "StepState": "dew.sampling.decoding.state:dew-lm",
        "StopStrings": "dew.sampling.decoding.strings:dew-lm",
        "Stopping": "dew.sampling.decoding.parts:dew-lm",
        "SuppressTokens": "dew.sampling.decoding.suppression:dew-lm",
        "Strategy": "dew.sampling.text.strategy:dew-lm",
        "Temperature": "dew.sampling.decoding.filters:dew-lm",
        "TopH": "dew.sampling.decoding.truncation:dew-lm",
        "TopK": "dew.sampling.decoding.filters:dew-lm",
        "TopP": "dew.sampling.decoding.filters:dew-lm",
        "Typical": "dew.sampling.decoding.truncation:dew-lm",
        "bad_words": "dew.sampling.decoding.sequences:dew-lm",
        "sequence_bias": "dew.sampling.decoding.sequences:dew-lm",
        "stop_strings": "dew.sampling.decoding.strings:dew-lm",
    },
)

if TYPE_CHECKING:
    from dew.sampling.decoding.filters import Greedy as Greedy
    from dew.sampling.decoding.filters import MinP as MinP
    from dew.sampling.decoding.filters import Temperature as Temperature
    from dew.sampling.decoding.filters import TopK as TopK
    from dew.sampling.decoding.filters import TopP as TopP
    from dew.sampling.decoding.lengths import ExponentialDecayLengthPenalty as ExponentialDecayLengthPenalty
    from dew.sampling.decoding.lengths import ForcedBOS as ForcedBOS
    from dew.sampling.decoding.lengths import ForcedEOS as ForcedEOS
    from dew.sampling.decoding.lengths import MinLength as MinLength
    from dew.sampling.decoding.lengths import MinNewTokens as MinNewTokens
    from dew.sampling.decoding.ngrams import NoRepeatNGram as NoRepeatNGram
    from dew.sampling.decoding.ngrams import PromptNoRepeatNGram as PromptNoRepeatNGram
    from dew.sampling.decoding.parts import LogitsTransform as LogitsTransform
    from dew.sampling.decoding.parts import Stopping as Stopping
    from dew.sampling.decoding.penalties import FrequencyPenalty as FrequencyPenalty
    from dew.sampling.decoding.penalties import PresencePenalty as PresencePenalty
    from dew.sampling.decoding.penalties import PromptRepetitionPenalty as PromptRepetitionPenalty
    from dew.sampling.decoding.penalties import RepetitionPenalty as RepetitionPenalty
    from dew.sampling.decoding.repair import RemoveInvalidValues as RemoveInvalidValues
    from dew.sampling.decoding.repair import Renormalize as Renormalize
    from dew.sampling.decoding.sequences import SequenceBias as SequenceBias
    from dew.sampling.decoding.sequences import bad_words as bad_words
    from dew.sampling.decoding.sequences import sequence_bias as sequence_bias
    from dew.sampling.decoding.state import StepState as StepState
    from dew.sampling.decoding.stopping import EndOfSequence as EndOfSequence
    from dew.sampling.decoding.stopping import MaxLength as MaxLength
    from dew.sampling.decoding.stopping import MaxNewTokens as MaxNewTokens
    from dew.sampling.decoding.strings import StopStrings as StopStrings
    from dew.sampling.decoding.strings import stop_strings as stop_strings
    from dew.sampling.decoding.suppression import BeginSuppressTokens as BeginSuppressTokens
    from dew.sampling.decoding.suppression import SuppressTokens as SuppressTokens
    from dew.sampling.decoding.truncation import EpsilonCutoff as EpsilonCutoff
    from dew.sampling.decoding.truncation import EtaCutoff as EtaCutoff
    from dew.sampling.decoding.truncation import TopH as TopH
    from dew.sampling.decoding.truncation import Typical as Typical
    from dew.sampling.text.sample import Sample as Sample
    from dew.sampling.text.strategy import Strategy as Strategy
