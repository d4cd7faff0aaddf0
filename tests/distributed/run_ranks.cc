#include "tests/distributed/run_ranks.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <numeric>
#include <span>
#include <thread>
#include <utility>

#include "tessera/actions/split_tokens.h"
#include "tessera/backend/test_forwarding_backend.h"
#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/checkpoint_saver.h"
#include "tessera/checkpoint/require_model.h"
#include "tessera/dataset/input_rows.h"
#include "tessera/ir/builder.h"
#include "tessera/launch/rank_backend.h"
#include "tessera/models/family.h"
#include "tessera/ops/all_ops.h"
#include "tessera/passes/compile.h"
#include "tessera/plan/graphs.h"
#include "tessera/plan/run_layout.h"
#include "tessera/program/step_names.h"
#include "tessera/program/test_in_flight.h"
#include "tessera/runtime/launcher.h"
#include "tessera/runtime/training_step.h"
#include "tessera/state/training_state.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;

RunLayout layout_of(const RankRun& run) {
  return {.mesh = run.mesh,
          .placement = run.placement,
          .secondary_use = run.secondary_use,
          .wires = run.wires,
          .sequence_parallel = run.sequence_parallel,
          .context = run.context};
}

constexpr const char* kSecondLoss = "second loss";

// `graph` with its loss made once more.
Graph with_second_loss(Graph graph) {
  GraphBuilder builder(std::move(graph));
  const ValueId first = builder.graph().outputs.at(0).value;
  const Node loss = builder.graph().nodes[builder.graph()[first].producer.at()];
  std::vector<Value> operands;
  for (const ValueId operand : loss.operands) {
    operands.push_back(builder.handle(operand));
  }
  builder.output(kSecondLoss, builder.emit(loss.op, operands)[0], OutputKind::kStatistic);
  return builder.take();
}

// A backend whose ops on the rank's thread take as long as on a device of so many FLOP/s. Short
// sleeps are put off and made up for by a later op, or before the rank talks to others.
class PacedBackend final : public ForwardingBackend {
 public:
  // Borrows `backend`.
  PacedBackend(Backend& backend, double flops) : ForwardingBackend(backend), flops_(flops) {}

  void learn(const Program& program) {
    for (const Segment& segment : program.segments) {
      for (const Instruction& instruction : segment.instructions) {
        TensorTypes operands;
        for (const TensorRef& operand : instruction.operands) {
          operands.push_back(operand.type);
        }
        const std::chrono::duration<double> seconds(cost(*instruction.op, operands).flop / flops_);
        ops_[instruction.op.get()] = {.time = std::chrono::duration_cast<Clock::duration>(seconds),
                                      .talks = !collectives(*instruction.op, operands).empty()};
      }
    }
  }

  void run(const Op& op, const Views& views, StreamId stream) override {
    if (stream != StreamId{0}) {
      ForwardingBackend::run(op, views, stream);
      return;
    }
    constexpr std::chrono::microseconds kShort(500);
    const PlayedOp& played = ops_.at(&op);
    if (played.talks) {
      sleep_until_ready(Clock::duration(0));
    }
    const Clock::time_point start = Clock::now();
    ForwardingBackend::run(op, views, stream);
    // Who has overslept begins what comes next late, and ends it in time.
    ready_ = std::max(ready_, start - overslept_) + played.time;
    sleep_until_ready(kShort);
  }

 private:
  struct PlayedOp {
    Clock::duration time{0};
    bool talks = false;
  };

  // Where that is more than `least`.
  void sleep_until_ready(Clock::duration least) {
    if (ready_ - Clock::now() > least) {
      std::this_thread::sleep_until(ready_);
      overslept_ = Clock::now() - ready_;
    }
  }

  double flops_;
  std::map<const Op*, PlayedOp> ops_;
  Clock::time_point ready_;  // when the device is done with what it was given
  Clock::duration overslept_{0};
};

// Two steps show a sanitizer what more would; the build says in the environment that one watches.
std::int64_t num_steps(const RankRun& run) {
  constexpr std::int64_t kMost = 2;
  const bool is_watched = std::getenv("TESSERA_SANITIZED") != nullptr;
  return is_watched && !run.one_batch ? std::min(run.steps, kMost) : run.steps;
}

// Of the checkout, which lies elsewhere where another machine built the test.
std::filesystem::path source_directory() {
  const char* const said = std::getenv("TESSERA_SOURCE");
  return said != nullptr ? said : TESSERA_SOURCE_DIR;
}

class RankTrainer {
 public:
  RankTrainer(const RankRun& run, World& world)
      : run_(run),
        world_(world),
        layout_(layout_of(run)),
        rank_(world, run.mesh, 1, run.device ? run.device() : nullptr, run.join),
        paced_(*rank_, run.device_flops),
        backend_(run.device_flops > 0 ? static_cast<Backend&>(paced_) : *rank_),
        graph_(whole_graph(run)),
        parameters_(parameter_inits(graph_)),
        part_(state_part(run.mesh, world.rank(), layout_.dims())),
        program_(compile()),
        executor_(program_, backend_) {
    initialize_state(executor_, parameters_, run.seed, part_);
    if (!run.resume.empty()) {
      const CheckpointReader reader(
          run.resume, {.verify = Verify::kOnLoad, .rank = world.rank(), .num_ranks = world.size()});
      require_model(reader, description(run).json, model_tensors(parameters_, run.moments));
      load_state(executor_, parameters_, reader, part_);
      done_ = reader.meta().step;
    }
  }

  RankResult run() {
    RankResult result;
    const std::int64_t last = done_ + num_steps(run_);
    for (std::int64_t step = done_ + 1; step <= last; ++step) {
      const std::int64_t valid = load_batch(run_.one_batch ? 1 : step);
      const Clock::time_point start = Clock::now();
      const StepOutputs outputs =
          TrainingStep(executor_).run({.num_labels = valid,
                                       .learning_rate = 3e-3,
                                       .update_number = step,
                                       .apply = step != run_.unapplied_step});
      result.step_seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
      result.waited_seconds.push_back(executor_.waited_seconds());
      TESSERA_CHECK(run_.keep != Keep::kAll || outputs.applied == (step != run_.unapplied_step),
                    "step {} is {}applied",
                    step,
                    outputs.applied ? "" : "not ");
      result.losses.push_back(outputs.loss_sum / static_cast<float>(valid));
      if (run_.loss_twice) {
        result.statistics.push_back(executor_.output_scalar(kSecondLoss) /
                                    static_cast<float>(valid));
      }
      result.grad_norms.push_back(outputs.grad_norm);
    }
    result.num_replayed = executor_.num_replayed();
    result.sent = by_level(rank_.sent(), run_.mesh);
    if (!run_.save.empty()) {
      save(last);
    }
    return result;
  }

  void add_states(WholeStates& states) { states.add(executor_, parameters_, part_); }

 private:
  Program compile() {
    Program program = rank_program(run_, workspace_of(*rank_), world_.rank());
    if (run_.change) {
      run_.change(program, world_.rank());
    }
    for (Segment& segment : program.segments) {
      std::erase_if(segment.instructions,
                    [&](const Instruction& instruction) { return is_left_out(*instruction.op); });
    }
    if (run_.device_flops > 0) {
      paced_.learn(program);
    }
    return program;
  }

  template <class... Attrs>
  static bool is_any(const Op& op) {
    return ((op.get_if<Attrs>() != nullptr) || ...);
  }

  bool is_left_out(const Op& op) const {
    const bool is_collective = is_any<AllReduceAttrs,
                                      AllReduceSlicesAttrs,
                                      GatherSlicesAttrs,
                                      ReduceSlicesAttrs,
                                      AllGatherAttrs,
                                      ReduceScatterAttrs,
                                      AllToAllAttrs,
                                      RingShiftAttrs>(op);
    return run_.keep == (is_collective ? Keep::kComputation : Keep::kCollectives);
  }

  // This rank's rows of every microbatch; num_labels().
  std::int64_t load_batch(std::int64_t step) {
    const std::int64_t rows = run_.global_batch / run_.microbatches / layout_.num_data();
    const std::int64_t place = data_place(run_.mesh, world_.rank());
    for (std::int64_t m = 0; m < run_.microbatches; ++m) {
      for (std::int64_t r = 0; r < rows; ++r) {
        const std::int64_t sequence = (m * layout_.num_data() + place) * rows + r;
        load_number(step * run_.global_batch + sequence, r, m);
        SequenceRow row = sequence_row(step, sequence);
        if (step == run_.unknown_token_step && r == 0) {
          row.tokens[0] = static_cast<std::int32_t>(description(run_).vocab);
        }
        write_row(executor_, row, context_part(layout_, world_.rank()), r, m);
      }
    }
    return num_labels();
  }

  // Where the program has that input: a stage of a pipeline has not all.
  void load_number(std::int64_t number, std::int64_t row, std::int64_t microbatch) {
    const auto found = std::ranges::find(program_.inputs, step_names::kSequences, &Binding::name);
    if (found != program_.inputs.end()) {
      auto* const numbers =
          reinterpret_cast<std::int32_t*>(executor_.bytes(*found, microbatch).data());
      numbers[row] = static_cast<std::int32_t>(number);
    }
  }

  SequenceRow sequence_row(std::int64_t step, std::int64_t sequence) const {
    const std::int64_t vocab = description(run_).vocab;
    const std::int64_t length =
        run_.document_length > 0 ? run_.document_length : run_.sequence_length;
    SequenceRow row = empty_row(run_.sequence_length);
    for (std::int64_t t = 0; t < run_.sequence_length; ++t) {
      const auto i = static_cast<std::size_t>(t);
      row.tokens[i] = token(step, sequence, t, vocab);
      row.positions[i] = static_cast<std::int32_t>(t % length);
      row.documents[i] = static_cast<std::int32_t>(t / length);
      row.labels[i] = counts(sequence, t) ? token(step, sequence, t + 1, vocab) : -1;
    }
    return row;
  }

  // Those that count in the whole batch.
  std::int64_t num_labels() const {
    std::int64_t valid = 0;
    for (std::int64_t sequence = 0; sequence < run_.global_batch; ++sequence) {
      for (std::int64_t t = 0; t < run_.sequence_length; ++t) {
        valid += counts(sequence, t) ? 1 : 0;
      }
    }
    return valid;
  }

  std::unique_ptr<Communicator> everybody() {
    std::vector<std::int64_t> ranks(static_cast<std::size_t>(world_.size()));
    std::iota(ranks.begin(), ranks.end(), 0);
    return world_.group(ranks);
  }

  void save(std::int64_t step) {
    CheckpointSaver saver({.rank = world_.rank(), .num_ranks = world_.size(), .launch = "launch"});
    saver.start(run_.save,
                {.step = step, .model = description(run_).json},
                state_tensors(executor_, parameters_, part_));
    TESSERA_CHECK(saver.wait() == SaveStatus::kWritten, "step {} not saved", step);
    const auto meet = [&] {
      std::vector<std::byte> all(static_cast<std::size_t>(world_.size()));
      everybody()->all_gather(std::vector<std::byte>(1), all, 1);
    };
    meet();
    saver.finish();
    meet();
  }

  const RankRun& run_;
  World& world_;
  RunLayout layout_;
  RankBackend rank_;
  PacedBackend paced_;
  Backend& backend_;
  Graph graph_;
  std::vector<ParameterInit> parameters_;
  StatePart part_;
  Program program_;
  Executor executor_;
  std::int64_t done_ = 0;  // steps, before it began
};

}  // namespace

std::int32_t token(std::int64_t step, std::int64_t sequence, std::int64_t t, std::int64_t vocab) {
  const std::int64_t mixed = (step * 7919 + sequence * 104729 + t * 31 + t * t * 7) % 9973;
  return static_cast<std::int32_t>(mixed % vocab);
}

bool counts(std::int64_t sequence, std::int64_t t) {
  return (sequence * 5 + t) % 7 != 0;
}

Graph whole_graph(const RankRun& run) {
  Graph graph = training_graph(
      description(run), run.global_batch / run.microbatches, run.sequence_length, run.dtype);
  return run.loss_twice ? with_second_loss(std::move(graph)) : graph;
}

std::int64_t num_layers(const RankRun& run) {
  std::int64_t layers = 0;
  for (const Node& node : training_graph(description(run), 1, 2, DType::kF32).nodes) {
    layers = std::max<std::int64_t>(layers, node.layer + 1);
  }
  return layers;
}

LlamaConfig odd_llama(std::int64_t layers) {
  return {.dim = 20, .layers = layers, .heads = 2, .kv_heads = 1, .ffn = 27, .vocab = 67};
}

Mesh local_mesh(const MeshDegrees& degrees) {
  return make_mesh(
      local_cluster(degrees.data * degrees.tensor * degrees.context * degrees.pipeline), degrees);
}

ModelDescription odd_model(const char* name, std::vector<std::string> adapted) {
  const ModelFamily& family = model_family(name);
  const bool pads_vocab = family.name == "gpt2" || family.name == "neox";
  ModelDescription model = family.describe(family.resolve(
      {.name = name,
       .dim = 48,
       .layers = 3,
       .heads = 8,
       .ffn = 27,
       .vocab = 67,
       .padded_vocab = pads_vocab ? std::optional<std::int64_t>(71) : std::nullopt,
       .rotary_fraction = family.name == "neox" ? std::optional<double>(0.67) : std::nullopt}));
  if (!adapted.empty()) {
    model.adapters = {.rank = 3, .alpha = 6.0, .targets = std::move(adapted)};
  }
  return model;
}

std::vector<std::string> attention_and_feed_forward() {
  return {"wq", "wk", "wv", "wo", "w1", "w2"};
}

ModelDescription description(const RankRun& run) {
  return run.other.model ? run.other : describe_llama(run.model);
}

Mesh virtual_mesh(std::int64_t ranks, std::int64_t tensor) {
  return make_mesh(load_cluster(virtual_cluster(ranks)),
                   {.data = ranks / tensor, .tensor = tensor});
}

std::string virtual_cluster(std::int64_t ranks) {
  return source_directory() / format("configs/clusters/virtual-{}.toml", ranks);
}

std::vector<Placement> placements(const Mesh& mesh) {
  std::vector<Placement> all;
  for (const std::int64_t param : data_degrees(mesh)) {
    for (const std::int64_t grad : data_degrees(mesh)) {
      for (const std::int64_t optimizer : data_degrees(mesh)) {
        if (grad % param == 0 && optimizer % grad == 0) {
          all.push_back({.param = param, .secondary = param, .grad = grad, .optimizer = optimizer});
        }
      }
    }
  }
  return all;
}

std::vector<Placement> preset_placements(const Mesh& mesh) {
  std::vector<std::string> names = {"ddp", "zero1", "zero2", "fsdp", "shard-grad-op"};
  for (const std::string& level : mesh.levels) {
    names.push_back("hsdp@" + level);
  }
  if (std::ranges::find(mesh.levels, "node") != mesh.levels.end()) {
    names.insert(names.end(), {"zeropp", "topo"});
  }
  std::vector<Placement> placements;
  for (const std::string& name : names) {
    placements.push_back(preset(name, mesh).placement);
  }
  const std::vector<std::int64_t> degrees = data_degrees(mesh);
  for (std::size_t inner = 0; inner + 1 < degrees.size(); ++inner) {
    placements.push_back({.param = degrees[inner + 1],
                          .secondary = degrees[inner],
                          .grad = degrees[inner + 1],
                          .optimizer = degrees.back()});
  }
  return placements;
}

namespace {

// As compile_training(), with other calls.
Program compile_in_flight(Graph graph, const CompileOptions& options, std::int64_t in_flight) {
  const Compilation compilation = {.options = options, .trains = true};
  Representation form = std::move(graph);
  for (const Pass& pass : pass_list()) {
    form = pass.when(compilation) ? pass.run(std::move(form), compilation) : std::move(form);
    if (pass.name == "lower") {
      call_in_order(std::get<Program>(form),
                    one_forward_one_backward(options.update.num_microbatches, in_flight));
    }
  }
  verify(std::get<Program>(form));
  return std::get<Program>(std::move(form));
}

}  // namespace

namespace {

std::optional<PipelineOptions> pipeline_options(const RankRun& run) {
  if (run.pipeline.layers.empty()) {
    return std::nullopt;
  }
  return pipeline_options(
      action_table(run),
      run.pipeline.layers,
      run.pipeline.slices > 1
          ? split_tokens(run.sequence_length, run.pipeline.slices, run.pipeline.token_growth)
          : std::vector<std::int64_t>(),
      pipeline_axes(run.mesh),
      run.device ? TransferLaunch::kInOneQueue : run.pipeline.launch);
}

}  // namespace

ActionTable action_table(const RankRun& run) {
  if (run.pipeline.table) {
    return *run.pipeline.table;
  }
  const std::int64_t ranks = num_ranks(pipeline_axes(run.mesh));
  return make_table({.schedule = run.pipeline.schedule,
                     .ranks = ranks,
                     .chunks = std::ssize(run.pipeline.layers) / ranks,
                     .microbatches = run.microbatches,
                     .slices = run.pipeline.slices});
}

CompileOptions rank_options(const RankRun& run, const WorkspaceQuery& workspace_bytes) {
  return {.update = {.clip = 0.5,
                     .moments = run.moments,
                     .num_microbatches = run.microbatches,
                     .state = state_axes(layout_of(run)),
                     .dims = layout_of(run).dims()},
          .float8 = run.float8,
          .attention = layout_of(run).attention(),
          .attention_kernels = run.attention,
          .dropout = run.dropout,
          .recompute = run.recompute ? recompute_all(run.kept) : run.rules,
          .fuse = run.fuse,
          .gelu_products = run.device != nullptr,
          .joins_accumulation = run.joins_accumulation,
          .scatter_hops = run.scatter_hops,
          .gathers_ahead = run.gathers_ahead,
          .tensor_beside = run.tensor_beside,
          .rings_beside = run.device == nullptr,
          .pipeline = pipeline_options(run),
          .overlap = run.overlap,
          .overlap_layers = run.overlap_layers,
          .offload = run.offload,
          .workspace_bytes = workspace_bytes};
}

Program rank_program(const RankRun& run, const WorkspaceQuery& workspace_bytes, std::int64_t rank) {
  const CompileOptions options = rank_options(run, workspace_bytes);
  if (options.pipeline) {
    return compile_pipeline(whole_graph(run), options)
        .at(static_cast<std::size_t>(pipeline_place(run.mesh, rank)));
  }
  return run.in_flight > 1 ? compile_in_flight(whole_graph(run), options, run.in_flight)
                           : compile_training(whole_graph(run), options);
}

RankResult run_ranks(const RankRun& run) {
  std::vector<RankResult> results(static_cast<std::size_t>(run.mesh.num_ranks()));
  WholeStates states;
  launch_ranks(run.mesh.num_ranks(),
               {.world = {.deadline_seconds = 60}, .throttle = run.throttle},
               [&](World& world) {
                 RankTrainer trainer(run, world);
                 results[static_cast<std::size_t>(world.rank())] = trainer.run();
                 if (run.keep == Keep::kAll) {
                   trainer.add_states(states);
                 }
               });
  const bool is_pipeline = !pipeline_axes(run.mesh).empty();
  RankResult& first = results[0];
  for (RankResult& result : results) {
    TESSERA_CHECK(run.keep != Keep::kAll ||
                      (result.losses == first.losses && result.grad_norms == first.grad_norms &&
                       (is_pipeline || result.sent == first.sent)),
                  "ranks disagree");
  }
  first.states = states.take();
  return first;
}

}  // namespace tessera
