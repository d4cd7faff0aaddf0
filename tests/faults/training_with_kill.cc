// training_with_kill STEP:RANK:ITEM RUN.toml [--section.key=value...]: trains as `tessera train`
// does; before the rank begins its ITEM-th instruction of the step its process is killed. With ITEM
// "count" nothing is, and the number of the rank's instructions in the step is printed.

#include <atomic>
#include <cinttypes>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tessera/backend/test_fault_backend.h"
#include "tessera/base/error.h"
#include "tessera/config/config.h"
#include "tessera/resolve/resolve.h"
#include "tessera/train/trainer.h"

namespace tessera {
namespace {

// Instructions of one rank, from its first step on.
struct Position {
  std::atomic<std::int64_t> step = 0;
  std::atomic<std::int64_t> item = 0;  // of the step
};

int run(int argc, char** argv) {
  std::int64_t step = 0;
  std::int64_t rank = 0;
  char item_text[32] = {};
  TESSERA_REQUIRE(
      argc > 2 &&
          std::sscanf(argv[1], "%" SCNd64 ":%" SCNd64 ":%31s", &step, &rank, item_text) == 3,
      ErrorCode::kInvalidConfig,
      "usage: training_with_kill STEP:RANK:ITEM RUN.toml [--section.key=value...]");
  const bool counts = std::string(item_text) == "count";
  const std::int64_t item = counts ? -1 : std::atoll(item_text);
  const std::vector<std::string> overrides(argv + 3, argv + argc);
  const RunConfig config = resolve(load_run_config(argv[2], overrides));

  Position position;
  std::atomic<std::int64_t> count = 0;
  const TrainHooks hooks = {
      .before_step =
          [&](std::int64_t of_rank, std::int64_t number) {
            if (of_rank == rank) {
              if (position.step == step) {
                count = position.item.load();
              }
              position.item = 0;
              position.step = number;
            }
          },
      .wrap_backend = [&](std::int64_t of_rank,
                          std::unique_ptr<Backend> backend) -> std::unique_ptr<Backend> {
        if (of_rank != rank) {
          return backend;
        }
        return std::make_unique<FaultBackend>(std::move(backend), [&](std::int64_t) {
          if (position.item++ == item && position.step == step) {
            std::raise(SIGKILL);
          }
        });
      }};
  train(config, resolve_model(config), hooks);
  if (counts && count > 0) {  // the process has this rank
    std::printf("%" PRId64 "\n", count.load());
  }
  return counts ? 0 : 3;  // the kill did not hit
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  try {
    return tessera::run(argc, argv);
  } catch (const tessera::Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return exit_code(error.code());
  }
}
