#include "tessera/config/schema.h"

#include "tessera/config/schema_sections.h"

namespace tessera {

std::vector<ConfigSection> schema() {
  std::vector<ConfigSection> sections;
  for (const std::vector<ConfigSection>& part :
       {input_sections(), training_sections(), execution_sections()}) {
    sections.insert(sections.end(), part.begin(), part.end());
  }
  return sections;
}

}  // namespace tessera
