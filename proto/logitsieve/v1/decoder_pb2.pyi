from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DTYPE_UNSPECIFIED: _ClassVar[DType]
    DTYPE_FLOAT32: _ClassVar[DType]
    DTYPE_FLOAT16: _ClassVar[DType]
    DTYPE_BFLOAT16: _ClassVar[DType]
    DTYPE_INT32: _ClassVar[DType]
    DTYPE_UINT64: _ClassVar[DType]
    DTYPE_BOOL: _ClassVar[DType]

class Normalizer(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NORMALIZER_UNSPECIFIED: _ClassVar[Normalizer]
    NORMALIZER_CANDIDATES: _ClassVar[Normalizer]
    NORMALIZER_LOWRANK: _ClassVar[Normalizer]
    NORMALIZER_SAMPLED: _ClassVar[Normalizer]
    NORMALIZER_SKETCH: _ClassVar[Normalizer]
    NORMALIZER_FULL: _ClassVar[Normalizer]
    NORMALIZER_APPROXIMATE: _ClassVar[Normalizer]

class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STATE_UNSPECIFIED: _ClassVar[State]
    STATE_LOADING: _ClassVar[State]
    STATE_AVAILABLE: _ClassVar[State]
    STATE_UNLOADING: _ClassVar[State]
    STATE_FAILED: _ClassVar[State]
DTYPE_UNSPECIFIED: DType
DTYPE_FLOAT32: DType
DTYPE_FLOAT16: DType
DTYPE_BFLOAT16: DType
DTYPE_INT32: DType
DTYPE_UINT64: DType
DTYPE_BOOL: DType
NORMALIZER_UNSPECIFIED: Normalizer
NORMALIZER_CANDIDATES: Normalizer
NORMALIZER_LOWRANK: Normalizer
NORMALIZER_SAMPLED: Normalizer
NORMALIZER_SKETCH: Normalizer
NORMALIZER_FULL: Normalizer
NORMALIZER_APPROXIMATE: Normalizer
STATE_UNSPECIFIED: State
STATE_LOADING: State
STATE_AVAILABLE: State
STATE_UNLOADING: State
STATE_FAILED: State

class Tensor(_message.Message):
    __slots__ = ("dtype", "rows", "cols", "data")
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    COLS_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    dtype: DType
    rows: int
    cols: int
    data: bytes
    def __init__(self, dtype: _Optional[_Union[DType, str]] = ..., rows: _Optional[int] = ..., cols: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class IdSets(_message.Message):
    __slots__ = ("offsets", "ids")
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    offsets: Tensor
    ids: Tensor
    def __init__(self, offsets: _Optional[_Union[Tensor, _Mapping]] = ..., ids: _Optional[_Union[Tensor, _Mapping]] = ...) -> None: ...

class Head(_message.Message):
    __slots__ = ("name", "knobs")
    class KnobsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    KNOBS_FIELD_NUMBER: _ClassVar[int]
    name: str
    knobs: _containers.ScalarMap[str, float]
    def __init__(self, name: _Optional[str] = ..., knobs: _Optional[_Mapping[str, float]] = ...) -> None: ...

class ModelSpec(_message.Message):
    __slots__ = ("model", "head", "min_precision", "exact", "normalizer", "log_z_width", "max_error")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    MIN_PRECISION_FIELD_NUMBER: _ClassVar[int]
    EXACT_FIELD_NUMBER: _ClassVar[int]
    NORMALIZER_FIELD_NUMBER: _ClassVar[int]
    LOG_Z_WIDTH_FIELD_NUMBER: _ClassVar[int]
    MAX_ERROR_FIELD_NUMBER: _ClassVar[int]
    model: str
    head: Head
    min_precision: float
    exact: bool
    normalizer: Normalizer
    log_z_width: float
    max_error: float
    def __init__(self, model: _Optional[str] = ..., head: _Optional[_Union[Head, _Mapping]] = ..., min_precision: _Optional[float] = ..., exact: _Optional[bool] = ..., normalizer: _Optional[_Union[Normalizer, str]] = ..., log_z_width: _Optional[float] = ..., max_error: _Optional[float] = ...) -> None: ...

class Constraints(_message.Message):
    __slots__ = ("banned", "allowed", "biased", "bias", "repeated", "repetition_penalty", "mask")
    BANNED_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_FIELD_NUMBER: _ClassVar[int]
    BIASED_FIELD_NUMBER: _ClassVar[int]
    BIAS_FIELD_NUMBER: _ClassVar[int]
    REPEATED_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    MASK_FIELD_NUMBER: _ClassVar[int]
    banned: IdSets
    allowed: IdSets
    biased: IdSets
    bias: Tensor
    repeated: IdSets
    repetition_penalty: float
    mask: Tensor
    def __init__(self, banned: _Optional[_Union[IdSets, _Mapping]] = ..., allowed: _Optional[_Union[IdSets, _Mapping]] = ..., biased: _Optional[_Union[IdSets, _Mapping]] = ..., bias: _Optional[_Union[Tensor, _Mapping]] = ..., repeated: _Optional[_Union[IdSets, _Mapping]] = ..., repetition_penalty: _Optional[float] = ..., mask: _Optional[_Union[Tensor, _Mapping]] = ...) -> None: ...

class Answer(_message.Message):
    __slots__ = ("model", "version", "digest", "head", "proven", "scanned", "fallback", "normalizer", "log_z", "log_z_low", "log_z_high", "log_z_error", "queue_ns", "compute_ns", "rows_missing", "max_error")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    PROVEN_FIELD_NUMBER: _ClassVar[int]
    SCANNED_FIELD_NUMBER: _ClassVar[int]
    FALLBACK_FIELD_NUMBER: _ClassVar[int]
    NORMALIZER_FIELD_NUMBER: _ClassVar[int]
    LOG_Z_FIELD_NUMBER: _ClassVar[int]
    LOG_Z_LOW_FIELD_NUMBER: _ClassVar[int]
    LOG_Z_HIGH_FIELD_NUMBER: _ClassVar[int]
    LOG_Z_ERROR_FIELD_NUMBER: _ClassVar[int]
    QUEUE_NS_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_NS_FIELD_NUMBER: _ClassVar[int]
    ROWS_MISSING_FIELD_NUMBER: _ClassVar[int]
    MAX_ERROR_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: str
    digest: str
    head: Head
    proven: Tensor
    scanned: Tensor
    fallback: Tensor
    normalizer: Normalizer
    log_z: Tensor
    log_z_low: Tensor
    log_z_high: Tensor
    log_z_error: Tensor
    queue_ns: int
    compute_ns: int
    rows_missing: _containers.RepeatedCompositeFieldContainer[RowRange]
    max_error: float
    def __init__(self, model: _Optional[str] = ..., version: _Optional[str] = ..., digest: _Optional[str] = ..., head: _Optional[_Union[Head, _Mapping]] = ..., proven: _Optional[_Union[Tensor, _Mapping]] = ..., scanned: _Optional[_Union[Tensor, _Mapping]] = ..., fallback: _Optional[_Union[Tensor, _Mapping]] = ..., normalizer: _Optional[_Union[Normalizer, str]] = ..., log_z: _Optional[_Union[Tensor, _Mapping]] = ..., log_z_low: _Optional[_Union[Tensor, _Mapping]] = ..., log_z_high: _Optional[_Union[Tensor, _Mapping]] = ..., log_z_error: _Optional[_Union[Tensor, _Mapping]] = ..., queue_ns: _Optional[int] = ..., compute_ns: _Optional[int] = ..., rows_missing: _Optional[_Iterable[_Union[RowRange, _Mapping]]] = ..., max_error: _Optional[float] = ...) -> None: ...

class RowRange(_message.Message):
    __slots__ = ("first", "rows")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    first: int
    rows: int
    def __init__(self, first: _Optional[int] = ..., rows: _Optional[int] = ...) -> None: ...

class TopKRequest(_message.Message):
    __slots__ = ("model_spec", "hidden_states", "k", "constraints")
    MODEL_SPEC_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_STATES_FIELD_NUMBER: _ClassVar[int]
    K_FIELD_NUMBER: _ClassVar[int]
    CONSTRAINTS_FIELD_NUMBER: _ClassVar[int]
    model_spec: ModelSpec
    hidden_states: Tensor
    k: int
    constraints: Constraints
    def __init__(self, model_spec: _Optional[_Union[ModelSpec, _Mapping]] = ..., hidden_states: _Optional[_Union[Tensor, _Mapping]] = ..., k: _Optional[int] = ..., constraints: _Optional[_Union[Constraints, _Mapping]] = ...) -> None: ...

class TopKResponse(_message.Message):
    __slots__ = ("answer", "ids", "logits")
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    LOGITS_FIELD_NUMBER: _ClassVar[int]
    answer: Answer
    ids: Tensor
    logits: Tensor
    def __init__(self, answer: _Optional[_Union[Answer, _Mapping]] = ..., ids: _Optional[_Union[Tensor, _Mapping]] = ..., logits: _Optional[_Union[Tensor, _Mapping]] = ...) -> None: ...

class BeamStepRequest(_message.Message):
    __slots__ = ("model_spec", "hidden_states", "scores", "lengths", "finished", "beams_in", "beams_out", "eos_ids", "length_penalty", "constraints")
    MODEL_SPEC_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_STATES_FIELD_NUMBER: _ClassVar[int]
    SCORES_FIELD_NUMBER: _ClassVar[int]
    LENGTHS_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    BEAMS_IN_FIELD_NUMBER: _ClassVar[int]
    BEAMS_OUT_FIELD_NUMBER: _ClassVar[int]
    EOS_IDS_FIELD_NUMBER: _ClassVar[int]
    LENGTH_PENALTY_FIELD_NUMBER: _ClassVar[int]
    CONSTRAINTS_FIELD_NUMBER: _ClassVar[int]
    model_spec: ModelSpec
    hidden_states: Tensor
    scores: Tensor
    lengths: Tensor
    finished: Tensor
    beams_in: int
    beams_out: int
    eos_ids: _containers.RepeatedScalarFieldContainer[int]
    length_penalty: float
    constraints: Constraints
    def __init__(self, model_spec: _Optional[_Union[ModelSpec, _Mapping]] = ..., hidden_states: _Optional[_Union[Tensor, _Mapping]] = ..., scores: _Optional[_Union[Tensor, _Mapping]] = ..., lengths: _Optional[_Union[Tensor, _Mapping]] = ..., finished: _Optional[_Union[Tensor, _Mapping]] = ..., beams_in: _Optional[int] = ..., beams_out: _Optional[int] = ..., eos_ids: _Optional[_Iterable[int]] = ..., length_penalty: _Optional[float] = ..., constraints: _Optional[_Union[Constraints, _Mapping]] = ...) -> None: ...

class BeamStepResponse(_message.Message):
    __slots__ = ("answer", "parents", "tokens", "scores", "normalized_scores", "finished")
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    PARENTS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    SCORES_FIELD_NUMBER: _ClassVar[int]
    NORMALIZED_SCORES_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    answer: Answer
    parents: Tensor
    tokens: Tensor
    scores: Tensor
    normalized_scores: Tensor
    finished: Tensor
    def __init__(self, answer: _Optional[_Union[Answer, _Mapping]] = ..., parents: _Optional[_Union[Tensor, _Mapping]] = ..., tokens: _Optional[_Union[Tensor, _Mapping]] = ..., scores: _Optional[_Union[Tensor, _Mapping]] = ..., normalized_scores: _Optional[_Union[Tensor, _Mapping]] = ..., finished: _Optional[_Union[Tensor, _Mapping]] = ...) -> None: ...

class SampleRequest(_message.Message):
    __slots__ = ("model_spec", "hidden_states", "samples", "seeds", "step", "temperature", "top_k", "top_p", "min_p", "constraints", "log_probs", "replace")
    MODEL_SPEC_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_STATES_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    SEEDS_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    CONSTRAINTS_FIELD_NUMBER: _ClassVar[int]
    LOG_PROBS_FIELD_NUMBER: _ClassVar[int]
    REPLACE_FIELD_NUMBER: _ClassVar[int]
    model_spec: ModelSpec
    hidden_states: Tensor
    samples: int
    seeds: Tensor
    step: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    constraints: Constraints
    log_probs: bool
    replace: bool
    def __init__(self, model_spec: _Optional[_Union[ModelSpec, _Mapping]] = ..., hidden_states: _Optional[_Union[Tensor, _Mapping]] = ..., samples: _Optional[int] = ..., seeds: _Optional[_Union[Tensor, _Mapping]] = ..., step: _Optional[int] = ..., temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., min_p: _Optional[float] = ..., constraints: _Optional[_Union[Constraints, _Mapping]] = ..., log_probs: _Optional[bool] = ..., replace: _Optional[bool] = ...) -> None: ...

class SampleResponse(_message.Message):
    __slots__ = ("answer", "ids", "log_probs", "perturbed")
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    LOG_PROBS_FIELD_NUMBER: _ClassVar[int]
    PERTURBED_FIELD_NUMBER: _ClassVar[int]
    answer: Answer
    ids: Tensor
    log_probs: Tensor
    perturbed: Tensor
    def __init__(self, answer: _Optional[_Union[Answer, _Mapping]] = ..., ids: _Optional[_Union[Tensor, _Mapping]] = ..., log_probs: _Optional[_Union[Tensor, _Mapping]] = ..., perturbed: _Optional[_Union[Tensor, _Mapping]] = ...) -> None: ...

class ScoreRequest(_message.Message):
    __slots__ = ("model_spec", "hidden_states", "token_ids", "constraints")
    MODEL_SPEC_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_STATES_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    CONSTRAINTS_FIELD_NUMBER: _ClassVar[int]
    model_spec: ModelSpec
    hidden_states: Tensor
    token_ids: Tensor
    constraints: Constraints
    def __init__(self, model_spec: _Optional[_Union[ModelSpec, _Mapping]] = ..., hidden_states: _Optional[_Union[Tensor, _Mapping]] = ..., token_ids: _Optional[_Union[Tensor, _Mapping]] = ..., constraints: _Optional[_Union[Constraints, _Mapping]] = ...) -> None: ...

class ScoreResponse(_message.Message):
    __slots__ = ("answer", "log_probs")
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    LOG_PROBS_FIELD_NUMBER: _ClassVar[int]
    answer: Answer
    log_probs: Tensor
    def __init__(self, answer: _Optional[_Union[Answer, _Mapping]] = ..., log_probs: _Optional[_Union[Tensor, _Mapping]] = ...) -> None: ...

class Error(_message.Message):
    __slots__ = ("code", "message", "field", "retry_after_ms", "incident")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    FIELD_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    INCIDENT_FIELD_NUMBER: _ClassVar[int]
    code: int
    message: str
    field: str
    retry_after_ms: int
    incident: str
    def __init__(self, code: _Optional[int] = ..., message: _Optional[str] = ..., field: _Optional[str] = ..., retry_after_ms: _Optional[int] = ..., incident: _Optional[str] = ...) -> None: ...

class DecodeRequest(_message.Message):
    __slots__ = ("id", "timeout_ms", "top_k", "beam_step", "sample", "score")
    ID_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    BEAM_STEP_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    id: int
    timeout_ms: int
    top_k: TopKRequest
    beam_step: BeamStepRequest
    sample: SampleRequest
    score: ScoreRequest
    def __init__(self, id: _Optional[int] = ..., timeout_ms: _Optional[int] = ..., top_k: _Optional[_Union[TopKRequest, _Mapping]] = ..., beam_step: _Optional[_Union[BeamStepRequest, _Mapping]] = ..., sample: _Optional[_Union[SampleRequest, _Mapping]] = ..., score: _Optional[_Union[ScoreRequest, _Mapping]] = ...) -> None: ...

class DecodeResponse(_message.Message):
    __slots__ = ("id", "error", "top_k", "beam_step", "sample", "score")
    ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    BEAM_STEP_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    id: int
    error: Error
    top_k: TopKResponse
    beam_step: BeamStepResponse
    sample: SampleResponse
    score: ScoreResponse
    def __init__(self, id: _Optional[int] = ..., error: _Optional[_Union[Error, _Mapping]] = ..., top_k: _Optional[_Union[TopKResponse, _Mapping]] = ..., beam_step: _Optional[_Union[BeamStepResponse, _Mapping]] = ..., sample: _Optional[_Union[SampleResponse, _Mapping]] = ..., score: _Optional[_Union[ScoreResponse, _Mapping]] = ...) -> None: ...

class Limits(_message.Message):
    __slots__ = ("max_rows", "max_k", "max_samples", "max_request_bytes", "max_constraint_ids")
    MAX_ROWS_FIELD_NUMBER: _ClassVar[int]
    MAX_K_FIELD_NUMBER: _ClassVar[int]
    MAX_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    MAX_REQUEST_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_CONSTRAINT_IDS_FIELD_NUMBER: _ClassVar[int]
    max_rows: int
    max_k: int
    max_samples: int
    max_request_bytes: int
    max_constraint_ids: int
    def __init__(self, max_rows: _Optional[int] = ..., max_k: _Optional[int] = ..., max_samples: _Optional[int] = ..., max_request_bytes: _Optional[int] = ..., max_constraint_ids: _Optional[int] = ...) -> None: ...

class OperatingPoint(_message.Message):
    __slots__ = ("head", "rows", "us_per_row", "precision_at", "mass_kept", "proven")
    class PrecisionAtEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: float
        def __init__(self, key: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...
    HEAD_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    US_PER_ROW_FIELD_NUMBER: _ClassVar[int]
    PRECISION_AT_FIELD_NUMBER: _ClassVar[int]
    MASS_KEPT_FIELD_NUMBER: _ClassVar[int]
    PROVEN_FIELD_NUMBER: _ClassVar[int]
    head: Head
    rows: int
    us_per_row: float
    precision_at: _containers.ScalarMap[int, float]
    mass_kept: float
    proven: bool
    def __init__(self, head: _Optional[_Union[Head, _Mapping]] = ..., rows: _Optional[int] = ..., us_per_row: _Optional[float] = ..., precision_at: _Optional[_Mapping[int, float]] = ..., mass_kept: _Optional[float] = ..., proven: _Optional[bool] = ...) -> None: ...

class Model(_message.Message):
    __slots__ = ("name", "version", "state", "error", "digest", "aliases", "vocab_size", "dim", "vocabulary_id", "limits", "heads", "points")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    ALIASES_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    DIM_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_ID_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    HEADS_FIELD_NUMBER: _ClassVar[int]
    POINTS_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: str
    state: State
    error: str
    digest: str
    aliases: _containers.RepeatedScalarFieldContainer[str]
    vocab_size: int
    dim: int
    vocabulary_id: str
    limits: Limits
    heads: _containers.RepeatedScalarFieldContainer[str]
    points: _containers.RepeatedCompositeFieldContainer[OperatingPoint]
    def __init__(self, name: _Optional[str] = ..., version: _Optional[str] = ..., state: _Optional[_Union[State, str]] = ..., error: _Optional[str] = ..., digest: _Optional[str] = ..., aliases: _Optional[_Iterable[str]] = ..., vocab_size: _Optional[int] = ..., dim: _Optional[int] = ..., vocabulary_id: _Optional[str] = ..., limits: _Optional[_Union[Limits, _Mapping]] = ..., heads: _Optional[_Iterable[str]] = ..., points: _Optional[_Iterable[_Union[OperatingPoint, _Mapping]]] = ...) -> None: ...

class ListModelsRequest(_message.Message):
    __slots__ = ("page_size", "page_token")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListModelsResponse(_message.Message):
    __slots__ = ("models", "next_page_token")
    MODELS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedCompositeFieldContainer[Model]
    next_page_token: str
    def __init__(self, models: _Optional[_Iterable[_Union[Model, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class GetModelRequest(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: str
    def __init__(self, model: _Optional[str] = ...) -> None: ...

class LoadRequest(_message.Message):
    __slots__ = ("name", "version", "alias")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ALIAS_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: str
    alias: str
    def __init__(self, name: _Optional[str] = ..., version: _Optional[str] = ..., alias: _Optional[str] = ...) -> None: ...

class UnloadRequest(_message.Message):
    __slots__ = ("name", "version", "drain_ms")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DRAIN_MS_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: str
    drain_ms: int
    def __init__(self, name: _Optional[str] = ..., version: _Optional[str] = ..., drain_ms: _Optional[int] = ...) -> None: ...

class SetAliasRequest(_message.Message):
    __slots__ = ("name", "alias", "version")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ALIAS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    name: str
    alias: str
    version: str
    def __init__(self, name: _Optional[str] = ..., alias: _Optional[str] = ..., version: _Optional[str] = ...) -> None: ...
