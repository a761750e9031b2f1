// Best tokens, draws and a beam search by a running server.
//
//   decode HOST:PORT MODEL HIDDEN.f32 EMBEDDING.f32 D     float32 matrices of D columns, without a header
//   decode HOST:PORT MODEL HIDDEN.f32 EMBEDDING.f32 D CALLS     microseconds a call of TopK instead
//
// `Model` stands for your decoder: it turns the tokens of a step into hidden states. Here it looks
// up a fixed vector for each token, so that the program runs with any index.

#include <cstdlib>
#include <fstream>
#include <iostream>

#include "beam_search.hpp"

using logitsieve::Matrix;

namespace {

Matrix<float> read_matrix(const std::string& path, std::size_t cols) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) throw std::runtime_error(path + " cannot be read");
  const auto bytes = static_cast<std::size_t>(file.tellg());
  if (cols == 0 || bytes % (cols * sizeof(float)))
    throw std::runtime_error(path + " is no matrix of float32 rows of " + std::to_string(cols));
  Matrix<float> matrix{bytes / (cols * sizeof(float)), cols, {}};
  matrix.values.resize(matrix.rows * cols);
  file.seekg(0);
  file.read(reinterpret_cast<char*>(matrix.values.data()), static_cast<std::streamsize>(bytes));
  return matrix;
}

struct Model {
  const Matrix<float>& embedding;  // [V, D]
  Matrix<float> state;             // [R, D]

  Matrix<float> step(const std::vector<std::int32_t>& parents, const std::vector<std::int32_t>& tokens) {
    Matrix<float> next{parents.size(), state.cols, {}};
    for (std::size_t r = 0; r < parents.size(); ++r)
      for (std::size_t d = 0; d < state.cols; ++d)
        next.values.push_back(0.5F * state.row(parents[r])[d] + embedding.row(tokens[r])[d]);
    return state = next;
  }
};

template <typename T>
void print(const char* name, std::size_t number, const T* values, std::size_t count) {
  std::cout << name << ' ' << number;
  for (std::size_t i = 0; i < count; ++i) std::cout << ' ' << values[i];
  std::cout << '\n';
}

void time_calls(logitsieve::DecoderClient& decoder, const Matrix<float>& hidden_states, int calls) {
  std::vector<double> took;
  for (int call = 0; call < calls; ++call) {
    const auto begun = std::chrono::steady_clock::now();
    decoder.topk(hidden_states, 5);
    const std::chrono::duration<double, std::micro> spent = std::chrono::steady_clock::now() - begun;
    took.push_back(spent.count());
  }
  std::nth_element(took.begin(), took.begin() + calls / 2, took.end());
  std::cout << took[calls / 2] << '\n';
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 6 || argc > 7) {
    std::cerr << "usage: decode HOST:PORT MODEL HIDDEN.f32 EMBEDDING.f32 D [CALLS]\n";
    return 2;
  }
  const auto dim = static_cast<std::size_t>(std::atol(argv[5]));
  const Matrix<float> hidden_states = read_matrix(argv[3], dim), embedding = read_matrix(argv[4], dim);
  logitsieve::pb::ModelSpec model_spec;
  model_spec.set_model(argv[2]);
  logitsieve::DecoderClient decoder(argv[1], model_spec);
  if (argc == 7) {
    time_calls(decoder, hidden_states, std::max(1, std::atoi(argv[6])));
    return 0;
  }

  const auto best = decoder.topk(hidden_states, 5);
  for (std::size_t r = 0; r < hidden_states.rows; ++r) print("best", r, best.ids.row(r), best.ids.cols);

  std::vector<std::uint64_t> seeds(hidden_states.rows);
  std::iota(seeds.begin(), seeds.end(), 7U);
  const auto drawn = decoder.sample(hidden_states, 3, seeds, 0.8, 0.95);
  for (std::size_t r = 0; r < hidden_states.rows; ++r) print("drawn", r, drawn.ids.row(r), drawn.ids.cols);

  Model model{embedding, hidden_states};
  logitsieve::SearchOptions options;
  options.num_beams = 4;
  options.eos_ids = {1};
  options.max_tokens = 8;
  const auto step = [&](const auto& parents, const auto& tokens) { return model.step(parents, tokens); };
  const auto found = logitsieve::beam_search(decoder, hidden_states, step, options);
  for (std::size_t s = 0; s < found.size(); ++s)
    for (const auto& each : found[s]) print("found", s, each.tokens.data(), each.tokens.size());
  return 0;
} catch (const std::exception& error) {
  std::cerr << "decode: " << error.what() << '\n';
  return 1;
}
