#include "tessera/ops/testing/all_samples.h"

#include <algorithm>
#include <iterator>

#include "tessera/base/error.h"

namespace tessera::conformance {
namespace {

// Every alternative must have both overloads: one that lacks them does not compile here.
template <class Variant>
struct SamplesOfAll;

template <class... As>
struct SamplesOfAll<std::variant<As...>> {
  static std::vector<Sample> collect() {
    std::vector<Sample> all;
    const auto add = [&all](SampleList list) { std::ranges::move(list, std::back_inserter(all)); };
    (add(samples(SamplesOf<As>())), ...);
    return all;
  }
};

struct RunReference {
  const Views& views;
  std::span<const CustomReference> custom;

  template <class Attrs>
  void operator()(const Attrs& attrs) const {
    reference(attrs, views);
  }

  void operator()(const CustomOp& op) const {
    for (const CustomReference& candidate : custom) {
      if (candidate(op, views)) {
        return;
      }
    }
    fail(ErrorCode::kInternal, "no reference of the custom op {}", info(op).name);
  }
};

std::vector<View> views_of(std::span<const HostTensor> tensors) {
  std::vector<View> views;
  views.reserve(tensors.size());
  for (const HostTensor& tensor : tensors) {
    views.push_back(tensor.view());
  }
  return views;
}

}  // namespace

std::vector<Sample> all_samples() {
  return SamplesOfAll<OpVariant>::collect();
}

void run_reference(const Op& op, const Views& views, std::span<const CustomReference> custom) {
  std::visit(RunReference{.views = views, .custom = custom}, op.attrs());
}

std::vector<HostTensor> reference_results(const Op& op,
                                          Types operand_types,
                                          std::span<const HostTensor> operands,
                                          std::span<const CustomReference> custom) {
  std::vector<HostTensor> results;
  for (const TensorType& type : infer(op, operand_types)) {
    results.emplace_back(reference_type(type));
  }
  const std::vector<View> in = views_of(operands);
  const std::vector<View> out = views_of(results);
  run_reference(op, {.in = in, .out = out, .workspace = {}}, custom);
  return results;
}

}  // namespace tessera::conformance
