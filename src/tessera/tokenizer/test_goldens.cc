#include "tessera/tokenizer/test_goldens.h"

namespace tessera {

std::filesystem::path golden_path(const std::string& name) {
  return std::filesystem::path(TESSERA_SOURCE_DIR) / "tests/golden/tokenizer" / name;
}

}  // namespace tessera
