#include "tessera/config/run_config.h"

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

}  // namespace tessera
