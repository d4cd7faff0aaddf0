#pragma once

// What the references of attention and of its parts share, in f64.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

#include "tessera/ops/attention/attention_operands.h"
#include "tessera/ops/testing/reference.h"

namespace tessera::attention_reference {

// Attention of one query in one head: which keys it sees, with what weight.
struct QueryRow {
  std::vector<std::size_t> keys;  // rows of k and v
  std::vector<double> scores;
};

// What forward and backward share.
struct Problem {
  View q;
  View k;
  AttentionIds id_views;
  double scale;
  bool causal;
  std::int64_t window;
  double softcap;

  std::size_t heads() const { return conformance::bound(q, 2); }

  std::size_t head_dim() const { return conformance::bound(q, 3); }

  std::size_t num_query_rows() const { return conformance::bound(q, 0) * conformance::bound(q, 1); }

  // The first element of head h of query row i, and of its group in key row j.
  std::size_t query_at(std::size_t i, std::size_t h) const {
    return (i * heads() + h) * head_dim();
  }

  std::size_t key_at(std::size_t j, std::size_t h) const {
    const std::size_t groups = conformance::bound(k, 2);
    return (j * groups + h / (heads() / groups)) * head_dim();
  }

  // Element (b, h, t) of lse.
  std::size_t lse_at(std::size_t i, std::size_t h) const {
    const std::size_t length = conformance::bound(q, 1);
    return (i / length * heads() + h) * length + i % length;
  }

  QueryRow row(std::size_t i, std::size_t h) const;
};

// Of the attributes and operands of attention, of its gradients or of a part of either.
template <class Attrs, class Operands>
Problem problem_of(const Attrs& attrs, const Operands& of) {
  return {.q = of.q,
          .k = of.k,
          .id_views = of.ids,
          .scale = attrs.scale,
          .causal = attrs.causal,
          .window = attrs.window,
          .softcap = attrs.softcap};
}

inline QueryRow Problem::row(std::size_t i, std::size_t h) const {
  const std::size_t num_keys = conformance::bound(k, 1);
  const std::size_t first_key = i / conformance::bound(q, 1) * num_keys;
  const auto query = conformance::reals(q).subspan(query_at(i, h), head_dim());
  const auto keys = conformance::reals(k);
  const auto positions = conformance::ids(id_views.key_positions);
  const auto documents = conformance::ids(id_views.key_documents);
  const std::int32_t position = conformance::ids(id_views.query_positions)[i];
  const std::int32_t document = conformance::ids(id_views.query_documents)[i];
  QueryRow result;
  for (std::size_t j = first_key; j < first_key + num_keys; ++j) {
    const bool same_document = document == documents[j];
    const bool not_after = positions[j] <= position;
    const bool is_near = window == 0 || position - positions[j] < window;
    if (!same_document || (causal && !not_after) || !is_near) {
      continue;
    }
    const auto key = keys.subspan(key_at(j, h), head_dim());
    result.keys.push_back(j);
    const double score = scale * std::inner_product(query.begin(), query.end(), key.begin(), 0.0);
    result.scores.push_back(softcap == 0.0 ? score : softcap * std::tanh(score / softcap));
  }
  return result;
}

inline double log_sum_exp(std::span<const double> scores) {
  if (scores.empty()) {
    return -std::numeric_limits<double>::infinity();
  }
  const double largest = *std::ranges::max_element(scores);
  double sum = 0;
  for (const double score : scores) {
    sum += std::exp(score - largest);
  }
  return largest + std::log(sum);
}

// Adds to dq, dk and dv, with p = exp(score - lse) and ds = p (do . v - do . o):
//   dq = scale sum_j ds k, dk = scale sum_i ds q, dv = sum_i p do,
// with a cap ds times 1 - (score / softcap)^2
inline void add_gradients(const Problem& problem, const AttentionBackwardOperands& of) {
  const auto dout = conformance::reals(of.dout);
  const auto q = conformance::reals(of.q);
  const auto k = conformance::reals(of.k);
  const auto v = conformance::reals(of.v);
  const auto o = conformance::reals(of.o);
  const auto lse = conformance::reals(of.lse);
  const auto dq = conformance::reals(of.dq);
  const auto dk = conformance::reals(of.dk);
  const auto dv = conformance::reals(of.dv);
  for (std::size_t i = 0; i < problem.num_query_rows(); ++i) {
    for (std::size_t h = 0; h < problem.heads(); ++h) {
      const QueryRow row = problem.row(i, h);
      const std::size_t at = problem.query_at(i, h);
      for (std::size_t n = 0; n < row.keys.size(); ++n) {
        const std::size_t key = problem.key_at(row.keys[n], h);
        const double p = std::exp(row.scores[n] - lse[problem.lse_at(i, h)]);
        double slope = 0;
        for (std::size_t c = 0; c < problem.head_dim(); ++c) {
          slope += dout[at + c] * (v[key + c] - o[at + c]);
        }
        const double part = problem.softcap == 0.0 ? 0.0 : row.scores[n] / problem.softcap;
        const double ds = p * slope * problem.scale * (1.0 - part * part);
        for (std::size_t c = 0; c < problem.head_dim(); ++c) {
          dq[at + c] += ds * k[key + c];
          dk[key + c] += ds * q[at + c];
          dv[key + c] += p * dout[at + c];
        }
      }
    }
  }
}

}  // namespace tessera::attention_reference
