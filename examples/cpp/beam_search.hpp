// Beam search by BeamStep, many sentences at once: hypothesis for hypothesis logitsieve's
// client/beam_search.py with its default options, and so Hugging Face's `generate(num_beams=...)`.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <tuple>

#include "decoder_client.hpp"

namespace logitsieve {

struct Hypothesis {
  double score, log_prob;            // log_prob / length ^ length_penalty
  std::vector<std::int32_t> tokens;  // with the final end token, if any

  bool operator<(const Hypothesis& other) const {
    return std::tie(score, log_prob, tokens) < std::tie(other.score, other.log_prob, other.tokens);
  }
};

struct SearchOptions {
  std::uint32_t num_beams = 5;
  std::vector<std::int32_t> eos_ids;
  std::size_t max_tokens = 40;
  double length_penalty = 1;
};

// (parents [R], tokens [R]) -> hidden_states [R, D]: row r continues row parents[r] of the call
// before by tokens[r]. R is the beams of each sentence that is still searched, group by group.
using ModelStep = std::function<Matrix<float>(const std::vector<std::int32_t>&,
                                              const std::vector<std::int32_t>&)>;

namespace detail {

constexpr float kDead = -1e9F;  // the score of no hypothesis; its sums stay below half

struct Sentence {
  std::size_t number;
  std::vector<std::vector<std::int32_t>> tokens;  // of each live hypothesis
  std::vector<float> scores;
};

}  // namespace detail

// The hypotheses of each row of `hidden_states` [S, D], best first.
inline std::vector<std::vector<Hypothesis>> beam_search(DecoderClient& decoder,
                                                        Matrix<float> hidden_states,
                                                        const ModelStep& step,
                                                        const SearchOptions& options) {
  using detail::kDead;
  const std::size_t beams = options.num_beams;
  const auto pairs = static_cast<std::uint32_t>(std::max<std::size_t>(2, 1 + options.eos_ids.size()) * beams);
  const auto rank = [&](double log_prob, std::size_t length) {
    return log_prob / std::pow(static_cast<double>(length), options.length_penalty);
  };
  std::vector<std::vector<Hypothesis>> done(hidden_states.rows);
  std::vector<detail::Sentence> live;
  for (std::size_t s = 0; s < hidden_states.rows; ++s) live.push_back({s, {{}}, {0.0F}});

  for (std::size_t length = 1; !live.empty(); ++length) {
    const std::size_t width = live[0].scores.size();  // one hypothesis at first, then `num_beams`
    std::vector<float> scores;
    for (const auto& each : live) scores.insert(scores.end(), each.scores.begin(), each.scores.end());
    const BeamPairs found = decoder.beam_step(hidden_states, scores, static_cast<std::uint32_t>(width), pairs,
                                              options.eos_ids);
    std::vector<detail::Sentence> going;
    std::vector<std::int32_t> parents, tokens;
    for (std::size_t g = 0; g < live.size(); ++g) {
      const std::int32_t *from = found.parents.row(g), *word = found.tokens.row(g);
      std::vector<float> value(found.scores.row(g), found.scores.row(g) + pairs);
      std::vector<std::uint32_t> order(pairs);
      std::iota(order.begin(), order.end(), 0U);
      const auto continued = [&](std::uint32_t p) {
        auto chosen = live[g].tokens[from[p]];
        chosen.push_back(word[p]);
        return chosen;
      };
      const auto ended = [&](std::uint32_t p) {
        return found.finished.row(g)[p] != 0 || length == options.max_tokens;
      };
      auto& pool = done[live[g].number];  // the best `num_beams` that have finished, best first
      for (std::uint32_t p = 0; p < pairs; ++p) {
        if (word[p] < 0) value[p] = kDead;
        if (p < beams && ended(p) && value[p] > kDead / 2)
          pool.push_back({rank(value[p], length), value[p], continued(p)});
      }
      std::sort(pool.begin(), pool.end(), [](const auto& a, const auto& b) { return b < a; });
      if (pool.size() > beams) pool.resize(beams);

      std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return ended(a) < ended(b); });
      detail::Sentence next{live[g].number, {}, {}};
      for (std::size_t i = 0; i < beams; ++i) {
        const std::uint32_t p = order[i];
        next.scores.push_back(ended(p) ? kDead : value[p]);
        next.tokens.push_back(word[p] < 0 ? std::vector<std::int32_t>(length) : continued(p));
      }
      const bool settled = length == options.max_tokens || next.scores[0] < kDead / 2 ||
                           (pool.size() == beams && rank(next.scores[0], length) <= pool.back().score);
      if (settled) continue;
      for (std::size_t i = 0; i < beams; ++i) {
        const std::uint32_t p = order[i];
        parents.push_back(static_cast<std::int32_t>(g * width) + std::max(from[p], 0));
        tokens.push_back(std::max(word[p], 0));
      }
      going.push_back(std::move(next));
    }
    live = std::move(going);
    if (!live.empty()) hidden_states = step(parents, tokens);
  }
  return done;
}

}  // namespace logitsieve
