#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "tessera/ops/op.h"

namespace tessera {

// Which of attention's products over batch and heads it is, as text "scores", "values" and "keys".
enum class BatchedForm : std::uint8_t {
  kScores,  // a (b, t, h, d), b (b, s, g, d) -> (b, h, t, s), sums over d
  kValues,  // a (b, h, t, s), b (b, s, g, d) -> (b, t, h, d), sums over s
  kKeys,    // a (b, h, t, s), b (b, t, h, d) -> (b, s, g, d), sums over t and a group's heads
};

std::string to_string(BatchedForm form);

// Errors: kInvalidArgument quoting the text.
void parse_text(std::string_view text, BatchedForm& form);

// A matrix product for each sequence and head, with grouped heads: head h of h heads goes with head
// h / group of the g = h / group heads of keys and values. Gradients of each form are of the
// others. Operands: as the form says -> like operand 0, with the dims of the form Types:    all
// alike in {f32, bf16}; sums in f32 Factors:  what is summed is reduced, heads with their groups;
// all others are free Cost:     2 b h t s d FLOP Errors:   kInvalidArgument where bounds of dims
// that go together differ
struct BatchedProductAttrs {
  BatchedForm form = BatchedForm::kScores;
  std::int64_t group = 1;              // heads of a group
  std::string keys_dim = "keys";       // the name of the result's dim s
  std::string heads_dim = "kv_heads";  // of keys: the name of the result's dim g

  friend bool operator==(const BatchedProductAttrs&, const BatchedProductAttrs&) = default;
};

OpInfo info(const BatchedProductAttrs& attrs);
TensorTypes infer(const BatchedProductAttrs& attrs, Types in);
FactorRule factors(const BatchedProductAttrs& attrs, Types in);
Works work(const BatchedProductAttrs& attrs, Types in);
void backward(const BatchedProductAttrs& attrs, GradBuilder& grad);
void visit(BatchedProductAttrs& attrs, AttrVisitor& visitor);
std::int64_t workspace_bytes(const BatchedProductAttrs& attrs,
                             cpu::Context& context,
                             std::span<const View> operands,
                             std::span<const View> results);
std::int64_t cuda_workspace_bytes(const BatchedProductAttrs& attrs,
                                  std::span<const View> operands,
                                  std::span<const View> results);
void run(const BatchedProductAttrs& attrs, cpu::Context& context, const Views& views);
void run(const BatchedProductAttrs& attrs, cuda::Context& context, const Views& views);

}  // namespace tessera
