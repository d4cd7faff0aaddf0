#pragma once

#include <string>

#include "tessera/resolve/explanation.h"

namespace tessera {

// What `tessera explain` prints, as text for people: one screen of the run (model, mesh, memory,
// work, traffic); how each parameter lies on the ranks; what each op does in a step, and which
// collectives run. And all of it but the program as JSON (docs/formats.md).
std::string summary_text(const Explanation& facts);
std::string parameters_text(const Explanation& facts);
std::string ops_text(const Explanation& facts);
std::string explanation_json(const Explanation& facts, bool with_program);

}  // namespace tessera
