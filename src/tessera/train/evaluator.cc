#include "tessera/train/evaluator.h"

#include <algorithm>
#include <span>

#include "tessera/backend/cpu/cpu_backend.h"
#include "tessera/base/format.h"
#include "tessera/passes/pipeline.h"
#include "tessera/train/step_program.h"
#include "tessera/train/training_state.h"

namespace tessera {
namespace {

// Products of fewer rows leave cores idle; more only take memory.
constexpr std::int64_t kTokens = 2048;
constexpr std::int64_t kMaxRows = 32;

}  // namespace

Evaluator::Evaluator(const TrainedModel& model, std::int64_t length)
    : num_rows_(std::clamp<std::int64_t>(kTokens / length, 1, kMaxRows)),
      backend_(make_cpu_backend(static_cast<int>(model.config.run.threads))) {
  const Graph graph = evaluation_graph(model.model, num_rows_, length, model.config.train.dtype);
  program_ = compile_forward(
      graph,
      {.fuse = model.config.passes.fuse,
       .group_gemms = model.config.passes.group_gemms,
       .workspace_bytes = [this](
                              const Op& op, std::span<const View> in, std::span<const View> out) {
         return backend_->workspace_bytes(op, in, out);
       }});
  executor_ = std::make_unique<Executor>(program_, *backend_);
  load_state(*executor_, parameter_inits(graph), *model.weights);
  executor_->set_scalar("seed", 0.0F);  // of gradients, which nobody asks for
}

std::vector<double> Evaluator::run() {
  executor_->run_step();
  std::vector<double> losses;
  for (std::int64_t row = 0; row < num_rows_; ++row) {
    losses.push_back(double{executor_->output_scalar(format("loss.{}", row))});
  }
  return losses;
}

}  // namespace tessera
