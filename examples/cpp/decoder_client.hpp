// A blocking client of the Decoder service: matrices in, matrices out.
#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "logitsieve/v1/decoder.grpc.pb.h"

namespace logitsieve {

namespace pb = ::logitsieve::v1;

// Rows of equal length, one after the other. Tensor.data has the same bytes: row-major and
// little-endian, as all of this client's platforms are.
template <typename T>
struct Matrix {
  std::size_t rows = 0, cols = 0;
  std::vector<T> values;

  const T* row(std::size_t r) const { return values.data() + r * cols; }
};

inline pb::DType dtype_of(float) { return pb::DTYPE_FLOAT32; }
inline pb::DType dtype_of(std::int32_t) { return pb::DTYPE_INT32; }
inline pb::DType dtype_of(std::uint64_t) { return pb::DTYPE_UINT64; }
inline pb::DType dtype_of(std::uint8_t) { return pb::DTYPE_BOOL; }

template <typename T>
void put(pb::Tensor* tensor, const T* values, std::size_t rows, std::size_t cols) {
  tensor->set_dtype(dtype_of(T{}));
  tensor->set_rows(static_cast<std::uint32_t>(rows));
  tensor->set_cols(static_cast<std::uint32_t>(cols));
  tensor->set_data(values, rows * cols * sizeof(T));
}

template <typename T>
Matrix<T> take(const pb::Tensor& tensor) {
  Matrix<T> matrix{tensor.rows(), tensor.cols(), {}};
  matrix.values.resize(matrix.rows * matrix.cols);
  if (tensor.dtype() != dtype_of(T{}) || tensor.data().size() != matrix.values.size() * sizeof(T))
    throw std::runtime_error("the server sent a tensor of another type or size");
  if (!matrix.values.empty())
    std::memcpy(matrix.values.data(), tensor.data().data(), tensor.data().size());
  return matrix;
}

// A call that failed: a status code of gRPC, and the server's message, which names the field.
struct CallFailed : std::runtime_error {
  explicit CallFailed(const grpc::Status& status)
      : std::runtime_error(status.error_message()), code(status.error_code()) {}
  grpc::StatusCode code;
};

struct TopK {
  Matrix<std::int32_t> ids;  // [B, k], best first
  Matrix<float> logits;      // [B, k], exact
  pb::Answer answer;         // which head answered, and what is proven
};

struct Draws {
  Matrix<std::int32_t> ids;  // [B, samples]
  Matrix<float> log_probs;   // [B, samples]
  pb::Answer answer;
};

struct BeamPairs {
  Matrix<std::int32_t> parents, tokens;  // [G, beams_out], -1 past the last pair
  Matrix<float> scores;                  // [G, beams_out], sums of log-probabilities
  Matrix<std::uint8_t> finished;         // [G, beams_out]
  pb::Answer answer;
};

class DecoderClient {
 public:
  // `address` is HOST:PORT. The channel is shared by all threads and reconnects by itself. Calls are
  // sent again while the server is away, which changes no answer: draws depend on their seeds alone.
  explicit DecoderClient(const std::string& address, pb::ModelSpec model_spec = {},
                         std::string api_key = {},
                         std::shared_ptr<grpc::ChannelCredentials> credentials =
                             grpc::InsecureChannelCredentials())
      : model_spec_(std::move(model_spec)), api_key_(std::move(api_key)) {
    grpc::ChannelArguments options;
    options.SetMaxReceiveMessageSize(-1);
    options.SetServiceConfigJSON(R"({"methodConfig": [{
      "name": [{"service": "logitsieve.v1.Decoder"}],
      "retryPolicy": {"maxAttempts": 4, "initialBackoff": "0.1s", "maxBackoff": "1s",
                      "backoffMultiplier": 2, "retryableStatusCodes": ["UNAVAILABLE"]}}]})");
    stub_ = pb::Decoder::NewStub(grpc::CreateCustomChannel(address, credentials, options));
  }

  TopK topk(const Matrix<float>& hidden_states, std::uint32_t k) {
    pb::TopKRequest request;
    begin(&request, hidden_states);
    request.set_k(k);
    pb::TopKResponse reply;
    check([&](auto* context) { return stub_->TopK(context, request, &reply); });
    return {take<std::int32_t>(reply.ids()), take<float>(reply.logits()), reply.answer()};
  }

  // Equal seeds draw equal ids, whatever else the server answers beside.
  Draws sample(const Matrix<float>& hidden_states, std::uint32_t samples,
               const std::vector<std::uint64_t>& seeds, double temperature = 1, double top_p = 0) {
    pb::SampleRequest request;
    begin(&request, hidden_states);
    request.set_samples(samples);
    put(request.mutable_seeds(), seeds.data(), seeds.size(), 1);
    request.set_temperature(temperature);
    request.set_top_p(top_p);
    pb::SampleResponse reply;
    check([&](auto* context) { return stub_->Sample(context, request, &reply); });
    return {take<std::int32_t>(reply.ids()), take<float>(reply.log_probs()), reply.answer()};
  }

  // `hidden_states` [G x beams_in, D] and `scores` [G x beams_in], group by group.
  BeamPairs beam_step(const Matrix<float>& hidden_states, const std::vector<float>& scores,
                      std::uint32_t beams_in, std::uint32_t beams_out,
                      const std::vector<std::int32_t>& eos_ids) {
    pb::BeamStepRequest request;
    begin(&request, hidden_states);
    put(request.mutable_scores(), scores.data(), scores.size(), 1);
    request.set_beams_in(beams_in);
    request.set_beams_out(beams_out);
    request.mutable_eos_ids()->Add(eos_ids.begin(), eos_ids.end());
    pb::BeamStepResponse reply;
    check([&](auto* context) { return stub_->BeamStep(context, request, &reply); });
    return {take<std::int32_t>(reply.parents()), take<std::int32_t>(reply.tokens()),
            take<float>(reply.scores()), take<std::uint8_t>(reply.finished()), reply.answer()};
  }

 private:
  template <typename Request>
  void begin(Request* request, const Matrix<float>& hidden_states) {
    *request->mutable_model_spec() = model_spec_;
    put(request->mutable_hidden_states(), hidden_states.values.data(), hidden_states.rows,
        hidden_states.cols);
  }

  template <typename Call>
  void check(const Call& call) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
    if (!api_key_.empty()) context.AddMetadata("authorization", "Bearer " + api_key_);
    if (const grpc::Status status = call(&context); !status.ok()) throw CallFailed(status);
  }

  pb::ModelSpec model_spec_;
  std::string api_key_;
  std::unique_ptr<pb::Decoder::Stub> stub_;
};

}  // namespace logitsieve
