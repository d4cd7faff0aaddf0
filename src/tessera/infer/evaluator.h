#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/comm/communicator.h"
#include "tessera/comm/mpi/mpi_launch.h"
#include "tessera/config/run_config.h"
#include "tessera/dataset/input_rows.h"
#include "tessera/infer/trained_model.h"
#include "tessera/launch/patience.h"
#include "tessera/launch/rank_backend.h"
#include "tessera/plan/pipeline_ranks.h"
#include "tessera/plan/run_layout.h"
#include "tessera/program/program.h"
#include "tessera/runtime/loss_executor.h"
#include "tessera/state/training_state.h"

namespace tessera {

// The config of a trained model, for its evaluation on the ranks that `overrides` name
// ("--parallel.ranks=4"): [parallel], [context], [pipeline], [state], [cluster], [comm] and
// run.threads say nothing of the training, but are those of a run file without them, and run.device
// is the model's. So it is one rank, or as many as a launcher started. Errors: kInvalidConfig, for
// other keys too.
RunConfig evaluation_config(const TrainedModel& trained, std::span<const std::string> overrides);

// What the ranks of a process share; all of it outlives them.
struct EvaluatorSetup {
  const TrainedModel& model;
  const RunLayout& layout;
  const ByPipelineRank<Program>& programs;  // that the ranks run
  const std::vector<ParameterInit>& parameters;
  std::int64_t num_rows = 1;   // sequences of a microbatch that a rank has
  std::int64_t last_rank = 0;  // along the pipeline, which makes the losses
};

// One rank of those that say how well a trained model predicts sequences: as many at a time as make
// good use of the machine. Those that read the same sequences (context and tensor parallelism)
// share the work of each.
class Evaluator {
 public:
  // Loads this rank's part of the weights. Every rank makes one, on its own thread. Errors: as
  // load_state(); kOutOfMemory.
  Evaluator(const EvaluatorSetup& setup, World& world);

  // Whether this rank speaks for all.
  bool leads() const { return world_.rank() == 0; }

  // Sequences at a time, of all ranks.
  std::int64_t num_sequences() const { return num_rows() * executor_.num_microbatches(); }

  // The ids of sequence number `sequence`, as many as run() was told. A label below 0 does not
  // count.
  using ReadRow = std::function<SequenceRow(std::int64_t sequence)>;

  // Of sequences first, first + 1, .. (num_sequences() of them, or up to `total`), the sum over the
  // labels that count of -log p(label), in nats. Every rank calls it with the same numbers and gets
  // the same; `read` is called for this rank's sequences. Errors: what `read`, kernels and
  // collectives throw.
  std::vector<double> losses(std::int64_t first, std::int64_t total, const ReadRow& read);

 private:
  // Of a microbatch, on all ranks.
  std::int64_t num_rows() const { return setup_.num_rows * setup_.layout.num_data(); }

  void load_rows(std::int64_t first,
                 std::int64_t total,
                 std::int64_t microbatch,
                 const ReadRow& read);
  std::vector<float> from_all(const std::vector<float>& own);

  const EvaluatorSetup& setup_;
  World& world_;
  std::unique_ptr<Communicator> all_;  // ranks
  std::int64_t place_;                 // among those that read other sequences
  ContextPart part_;                   // of each of its own
  RankBackend backend_;
  LossExecutor executor_;
};

// The ranks of an evaluation, as the model's config lays them out: threads of this process, or this
// process as one of a launcher's.
class EvaluatorRanks {
 public:
  // Joins the other processes. Borrows the model, whose config is an evaluation_config(). Errors:
  // as join_launched().
  explicit EvaluatorRanks(const TrainedModel& model);

  // Whether this process speaks for all.
  bool leads() const { return !launch_ || launch_->rank == 0; }

  // Runs body(), which calls run(). Where a process fails before that, all do, and say it once.
  template <class Body>
  void fail_together(const Body& body) {
    try {
      body();
    } catch (...) {
      meet(to_error(std::current_exception()));
      throw;
    }
  }

  // The least number of tokens, at least `length`, that the ranks of a sequence can share.
  std::int64_t whole_length(std::int64_t length) const;

  // Calls body(evaluator, keeps) as each rank of this process, for sequences of up to `length`
  // tokens; `keeps` is true for one of them, which may write what it finds where the caller sees
  // it. Once only. Errors: kInvalidConfig where the layout does not fit the model; those of the
  // ranks.
  void run(std::int64_t length, const std::function<void(Evaluator&, bool keeps)>& body);

 private:
  void meet(const std::optional<Error>& error);

  const TrainedModel& model_;
  std::optional<MpiLaunch> launch_;
  std::unique_ptr<World> world_;  // null without a launcher
  // What the processes do until run(), tokenizing above all, takes each as long as it takes.
  std::unique_ptr<Communicator> waiting_;
  std::unique_ptr<Patience> patience_;
  bool has_prepared_ = false;
};

}  // namespace tessera
