#include "tessera/program/first_microbatches.h"

#include <vector>

#include "tessera/base/error.h"

namespace tessera {

Program first_microbatches(Program program, std::int64_t count) {
  TESSERA_CHECK(count > 0 && count <= program.num_microbatches,
                "{} microbatches of {}",
                count,
                program.num_microbatches);
  std::erase_if(program.calls, [&](const Call& call) { return call.microbatch >= count; });
  program.num_microbatches = count;
  verify(program);
  return program;
}

}  // namespace tessera
