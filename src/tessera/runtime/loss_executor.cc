#include "tessera/runtime/loss_executor.h"

#include <utility>

#include "tessera/program/first_microbatches.h"
#include "tessera/runtime/training_step.h"

namespace tessera {

LossExecutor::LossExecutor(const Program& program, Backend& backend)
    : LossExecutor(program, backend, backend.allocate(program.arena_bytes), program.arena_bytes) {}

LossExecutor::LossExecutor(const Program& program,
                           Backend& backend,
                           std::shared_ptr<Arena> arena,
                           std::int64_t arena_bytes)
    : backend_(backend),
      arena_(std::move(arena)),
      arena_bytes_(arena_bytes),
      all_(program, backend, arena_, arena_bytes) {}

LossExecutor::Rest::Rest(Program fewer, LossExecutor& owner)
    : program(std::move(fewer)),
      executor(program, owner.backend_, owner.arena_, owner.arena_bytes_) {}

void LossExecutor::run(std::int64_t count) {
  if (count == num_microbatches()) {
    run_losses(all_);
    return;
  }
  if (!rest_ || rest_->program.num_microbatches != count) {
    rest_.reset();
    rest_.emplace(first_microbatches(all_.program(), count), *this);
  }
  run_losses(rest_->executor);
}

}  // namespace tessera
