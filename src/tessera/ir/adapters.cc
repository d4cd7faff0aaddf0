#include "tessera/ir/adapters.h"

#include "tessera/base/format.h"

namespace tessera {
namespace {

constexpr std::string_view kSuffixA = ".lora_a";
constexpr std::string_view kSuffixB = ".lora_b";
constexpr std::string_view kSuffixWeight = ".weight";

}  // namespace

std::string adapter_a(std::string_view weight) {
  return format("{}{}", weight, kSuffixA);
}

std::string adapter_b(std::string_view weight) {
  return format("{}{}", weight, kSuffixB);
}

bool is_adapter(std::string_view parameter) {
  return parameter.ends_with(kSuffixA) || parameter.ends_with(kSuffixB);
}

std::string target_name(std::string_view weight) {
  if (weight.ends_with(kSuffixWeight)) {
    weight.remove_suffix(kSuffixWeight.size());
  }
  return std::string(weight.substr(weight.rfind('.') + 1));
}

}  // namespace tessera
