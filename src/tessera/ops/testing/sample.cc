#include "tessera/ops/testing/sample.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "tessera/base/error.h"
#include "tessera/base/random.h"
#include "tessera/ops/all_ops.h"

namespace tessera::conformance {
namespace {

std::int32_t draw(std::uint64_t key, std::size_t index, std::int32_t end) {
  return static_cast<std::int32_t>(uniform(key, index) * static_cast<double>(end));
}

void round_to(std::span<HostTensor> operands, Types types) {
  for (std::size_t i = 0; i < operands.size(); ++i) {
    operands[i] = widened(rounded(operands[i], types[i].dtype));
  }
}

}  // namespace

Fill normal(double std, double mean) {
  return [std, mean](std::uint64_t key, HostTensor& operand) {
    std::vector<float> values(operand.f64().size());
    fill_normal(key, 0, {.std = static_cast<float>(std)}, values);
    std::ranges::transform(values, operand.f64().begin(), [mean](float value) {
      return mean + static_cast<double>(value);
    });
  };
}

Fill uniform_between(double low, double high) {
  return [low, high](std::uint64_t key, HostTensor& operand) {
    std::size_t index = 0;
    for (double& element : operand.f64()) {
      element = low + (high - low) * uniform(key, index++);
    }
  };
}

Fill constant(double value) {
  return [value](std::uint64_t, HostTensor& operand) { std::ranges::fill(operand.f64(), value); };
}

Fill integers(std::int32_t end) {
  return [end](std::uint64_t key, HostTensor& operand) {
    std::size_t index = 0;
    for (std::int32_t& element : operand.i32()) {
      element = draw(key, index++, end);
    }
  };
}

Fill labels(std::int32_t vocab, std::int32_t ignored_every) {
  return [vocab, ignored_every](std::uint64_t key, HostTensor& operand) {
    std::size_t index = 0;
    for (std::int32_t& element : operand.i32()) {
      const bool ignored = draw(key, 2 * index, ignored_every) == 0;
      element = ignored ? -1 : draw(key, 2 * index + 1, vocab);
      ++index;
    }
  };
}

Fill prepared() {
  return [](std::uint64_t, HostTensor&) {};
}

TensorTypes types(DType dtype, std::initializer_list<std::string_view> texts) {
  TensorTypes result;
  for (const std::string_view text : texts) {
    const bool is_open = text.starts_with('?');
    result.push_back(parse_tensor_type(is_open ? format("{}{}", name(dtype), text.substr(1))
                                               : std::string(text)));
  }
  return result;
}

std::string full_name(const Sample& sample) {
  return format("{}.{}", info(*sample.op).name, sample.name);
}

namespace {

// By TESSERA_SAMPLE_SEED operands are drawn anew; without, they are the same each time.
std::uint64_t sample_seed() {
  const char* const text = std::getenv("TESSERA_SAMPLE_SEED");
  return text == nullptr ? 0 : std::strtoull(text, nullptr, 10);
}

}  // namespace

void add_codes(Sample& sample, const Float8Results& float8, std::size_t count) {
  const std::size_t first = infer(*sample.op, sample.operands).size() - 2 * count;
  for (std::size_t i = 0; i < count; ++i) {
    sample.parts.push_back({.op = make_op(code_attrs(float8)),
                            .operands = {i},
                            .results = {first + 2 * i, first + 2 * i + 1}});
  }
  sample.name += format("_{}", name(float8.dtype));
  sample.differentiable = false;
}

std::vector<HostTensor> make_operands(const Sample& sample, std::uint64_t draw) {
  TESSERA_CHECK(sample.fills.size() <= sample.operands.size(),
                "{} has {} fills for {} operands",
                full_name(sample),
                sample.fills.size(),
                sample.operands.size());
  std::vector<HostTensor> operands;
  for (std::size_t i = 0; i < sample.operands.size(); ++i) {
    operands.emplace_back(reference_type(sample.operands[i]));
    const std::uint64_t key =
        random_key(i + (sample_seed() << 8U) + (draw << 40U), full_name(sample));
    (i < sample.fills.size() ? sample.fills[i] : normal())(key, operands.back());
  }
  round_to(operands, sample.operands);
  if (sample.prepare) {
    sample.prepare(operands);
  }
  for (std::size_t i = 0; i < operands.size(); ++i) {
    operands[i] = rounded(operands[i], sample.operands[i].dtype);
  }
  return operands;
}

}  // namespace tessera::conformance
