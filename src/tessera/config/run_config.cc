#include "tessera/config/run_config.h"

#include "tessera/base/format.h"

namespace tessera {

std::string_view to_string(DataFormat format) {
  switch (format) {
    case DataFormat::kText:
      return "text";
  }
  return "?";
}

std::string_view to_string(OptimizerName name) {
  switch (name) {
    case OptimizerName::kAdamW:
      return "adamw";
  }
  return "?";
}

std::string_view to_string(Recompute recompute) {
  switch (recompute) {
    case Recompute::kNone:
      return "none";
    case Recompute::kFull:
      return "full";
  }
  return "?";
}

std::string placed(const RunConfig& config, std::string_view key) {
  const auto found = config.origins.places.find(key);
  const std::string& place =
      found == config.origins.places.end() ? config.origins.file : found->second;
  return place.empty() ? std::string(key) : format("{}: {}", place, key);
}

}  // namespace tessera
