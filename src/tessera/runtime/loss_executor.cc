#include "tessera/runtime/loss_executor.h"

#include <utility>

#include "tessera/program/first_microbatches.h"
#include "tessera/runtime/training_step.h"

namespace tessera {

LossExecutor::LossExecutor(const Program& program, Backend& backend)
    : LossExecutor(
          program,
          backend,
          {.device = backend.allocate(program.arena_bytes), .device_bytes = program.arena_bytes}) {}

LossExecutor::LossExecutor(const Program& program, Backend& backend, ProgramArenas arenas)
    : backend_(backend), arenas_(std::move(arenas)), all_(program, backend, arenas_) {}

LossExecutor::Rest::Rest(Program fewer, LossExecutor& owner)
    : program(std::move(fewer)), executor(program, owner.backend_, owner.arenas_) {}

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
