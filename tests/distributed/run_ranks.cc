#include "tests/distributed/run_ranks.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <utility>

#include "tessera/backend/cpu/cpu_backend.h"
#include "tessera/base/error.h"
#include "tessera/base/half.h"
#include "tessera/comm/axis_communicators.h"
#include "tessera/comm/local/local_world.h"
#include "tessera/ops/collective/collective.h"
#include "tessera/passes/pipeline.h"
#include "tessera/runtime/executor.h"
#include "tessera/train/step_program.h"
#include "tessera/train/training_state.h"

namespace tessera {
namespace {

// Leading data levels over which a state of this degree is cut.
std::size_t num_axes(const Mesh& mesh, std::int64_t degree) {
  std::size_t count = 0;
  for (const DataLevel& level : data_levels(mesh)) {
    count += level.degree <= degree ? 1 : 0;
  }
  return count;
}

StateAxes state_axes(const Mesh& mesh, const Placement& placement) {
  StateAxes state{.axes = {},
                  .param = num_axes(mesh, placement.param),
                  .secondary = num_axes(mesh, placement.secondary),
                  .grad = num_axes(mesh, placement.grad),
                  .optimizer = num_axes(mesh, placement.optimizer)};
  for (const DataLevel& level : data_levels(mesh)) {
    for (const std::size_t axis : level.axes) {
      state.axes.push_back({.name = mesh.axes[axis].name, .size = mesh.axes[axis].size});
    }
  }
  return state;
}

// Batches over the data axes; attention heads and the widths of the feed-forward over the tensor
// axes.
DimAxes dim_axes(const Mesh& mesh) {
  DimAxes dims;
  for (const MeshAxis& axis : mesh.axes) {
    const AxisSize size{.name = axis.name, .size = axis.size};
    if (axis.group == AxisGroup::kData) {
      dims["batch"].push_back(size);
    } else if (axis.group == AxisGroup::kTensor) {
      for (const char* dim : {"heads", "kv_heads", "mlp"}) {
        dims[dim].push_back(size);
      }
    }
  }
  return dims;
}

// Token t of sequence s of step n, and whether its label counts: some do not.
std::int32_t token(std::int64_t step, std::int64_t sequence, std::int64_t t, std::int64_t vocab) {
  const std::int64_t mixed = (step * 7919 + sequence * 104729 + t * 31 + t * t * 7) % 9973;
  return static_cast<std::int32_t>(mixed % vocab);
}

bool counts(std::int64_t sequence, std::int64_t t) {
  return (sequence * 5 + t) % 7 != 0;
}

class RankTrainer {
 public:
  RankTrainer(const RankRun& run, World& world)
      : run_(run),
        world_(world),
        num_data_(num_ranks(state_axes(run.mesh, run.placement).axes)),
        communicators_(world, run.mesh),
        backend_(make_cpu_backend(
            1,
            [this](std::string_view axis) -> Communicator& { return communicators_.along(axis); })),
        graph_(training_graph(describe_llama(run.model),
                              run.global_batch / run.microbatches,
                              run.sequence_length,
                              run.dtype)),
        part_{.dims = dim_axes(run.mesh),
              .coordinate = [this](std::string_view axis) { return coordinate(axis); },
              .num_slices = num_data_,
              .slice_index =
                  [this](std::int64_t degree) {
                    return slice_index(run_.mesh, world_.rank(), degree);
                  }},
        program_(compile()),
        executor_(program_, *backend_) {
    initialize_state(executor_, parameter_inits(graph_), 42, 1, part_);
  }

  RankResult run() {
    RankResult result;
    for (std::int64_t step = 1; step <= run_.steps; ++step) {
      const std::int64_t valid = load_batch(step);
      executor_.set_scalar("seed", 1.0F / static_cast<float>(valid));
      executor_.set_scalar("learning_rate", 3e-3F);
      executor_.set_scalar("update_number", static_cast<float>(step));
      executor_.set_scalar("apply", 1.0F);
      executor_.run_step();
      TESSERA_CHECK(executor_.output_scalar("applied") == 1.0F, "step {} not applied", step);
      result.losses.push_back(executor_.output_scalar("loss") / static_cast<float>(valid));
      result.grad_norms.push_back(executor_.output_scalar("grad_norm"));
    }
    // Parts of tensors are compared through the losses that they give.
    if (num_data_ == world_.size()) {
      for (const ParameterInit& parameter : parameter_inits(graph_)) {
        result.weights[parameter.name] = whole(parameter);
      }
    }
    return result;
  }

 private:
  Program compile() {
    return compile_training(
        graph_,
        {.update = {.clip = 0.5,
                    .num_microbatches = run_.microbatches,
                    .state = state_axes(run_.mesh, run_.placement),
                    .dims = dim_axes(run_.mesh)},
         .recompute = run_.recompute,
         .workspace_bytes = [this](
                                const Op& op, std::span<const View> in, std::span<const View> out) {
           return backend_->workspace_bytes(op, in, out);
         }});
  }

  std::int64_t coordinate(std::string_view axis) const {
    const auto found = std::ranges::find(run_.mesh.axes, axis, &MeshAxis::name);
    return run_.mesh.coordinates(
        world_.rank())[static_cast<std::size_t>(found - run_.mesh.axes.begin())];
  }

  // This rank's place among the data ranks, and so the rows that it reads.
  std::int64_t data_place() const {
    std::int64_t place = 0;
    std::int64_t step = 1;
    for (const MeshAxis& axis : run_.mesh.axes) {
      if (axis.group == AxisGroup::kData) {
        place += coordinate(axis.name) * step;
        step *= axis.size;
      }
    }
    return place;
  }

  // This rank's rows of every microbatch; the labels that count in the whole batch.
  std::int64_t load_batch(std::int64_t step) {
    const std::int64_t rows = run_.global_batch / run_.microbatches / num_data_;
    const std::int64_t place = data_place();
    for (std::int64_t m = 0; m < run_.microbatches; ++m) {
      const auto input = [&](std::string_view name) {
        const auto bytes = executor_.bytes(find_binding(program_.inputs, name), m);
        return reinterpret_cast<std::int32_t*>(bytes.data());
      };
      for (std::int64_t r = 0; r < rows; ++r) {
        const std::int64_t sequence = (m * num_data_ + place) * rows + r;
        for (std::int64_t t = 0; t < run_.sequence_length; ++t) {
          const std::int64_t i = r * run_.sequence_length + t;
          input("tokens")[i] = token(step, sequence, t, run_.model.vocab);
          input("positions")[i] = static_cast<std::int32_t>(t);
          input("documents")[i] = 0;
          input("labels")[i] =
              counts(sequence, t) ? token(step, sequence, t + 1, run_.model.vocab) : -1;
        }
      }
    }
    std::int64_t valid = 0;
    for (std::int64_t sequence = 0; sequence < run_.global_batch; ++sequence) {
      for (std::int64_t t = 0; t < run_.sequence_length; ++t) {
        valid += counts(sequence, t) ? 1 : 0;
      }
    }
    return valid;
  }

  // The whole parameter in f32, gathered by the slices' indices.
  std::vector<float> whole(const ParameterInit& parameter) {
    const Binding& binding = find_binding(program_.states, parameter.name);
    const std::span<std::byte> bytes = executor_.bytes(binding);
    std::vector<float> own(static_cast<std::size_t>(binding.tensor.type.num_elements()));
    if (run_.dtype == DType::kF32) {
      std::memcpy(own.data(), bytes.data(), bytes.size());
    } else {
      std::transform(reinterpret_cast<const BFloat16*>(bytes.data()),
                     reinterpret_cast<const BFloat16*>(bytes.data()) + own.size(),
                     own.begin(),
                     [](BFloat16 value) { return to_float(value); });
    }
    const TensorType& type = binding.tensor.type;
    if (type.num_dims() != 1 || type.dims[0].name != kSliceDim) {
      return own;
    }
    std::vector<std::int64_t> everybody(static_cast<std::size_t>(world_.size()));
    for (std::size_t i = 0; i < everybody.size(); ++i) {
      everybody[i] = static_cast<std::int64_t>(i);
    }
    std::vector<float> all(own.size() * everybody.size());
    world_.group(everybody)->all_gather(std::as_bytes(std::span(own)),
                                        std::as_writable_bytes(std::span(all)),
                                        own.size() * sizeof(float));
    std::vector<float> result(own.size() * static_cast<std::size_t>(run_.placement.param));
    for (std::size_t rank = 0; rank < everybody.size(); ++rank) {
      const auto index =
          static_cast<std::size_t>(slice_index(run_.mesh, everybody[rank], run_.placement.param));
      std::copy_n(all.begin() + static_cast<std::ptrdiff_t>(rank * own.size()),
                  own.size(),
                  result.begin() + static_cast<std::ptrdiff_t>(index * own.size()));
    }
    result.resize(static_cast<std::size_t>(parameter.type.num_elements()));
    return result;
  }

  const RankRun& run_;
  World& world_;
  std::int64_t num_data_;
  AxisCommunicators communicators_;
  std::unique_ptr<Backend> backend_;
  Graph graph_;
  StatePart part_;
  Program program_;
  Executor executor_;
};

}  // namespace

RankResult run_ranks(const RankRun& run) {
  LocalWorld world(run.mesh.num_ranks(), {.deadline_seconds = 60});
  std::vector<RankResult> results(static_cast<std::size_t>(world.num_ranks()));
  std::mutex mutex;
  std::exception_ptr first_error;
  std::vector<std::jthread> threads;
  for (std::int64_t rank = 0; rank < world.num_ranks(); ++rank) {
    threads.emplace_back([&, rank] {
      const std::unique_ptr<World> self = world.join(rank);
      try {
        results[static_cast<std::size_t>(rank)] = RankTrainer(run, *self).run();
      } catch (...) {
        {
          const std::scoped_lock lock(mutex);
          first_error = first_error ? first_error : std::current_exception();
        }
        self->abort("another rank failed");
      }
    });
  }
  threads.clear();
  if (first_error) {
    std::rethrow_exception(first_error);
  }
  for (const RankResult& result : results) {
    TESSERA_CHECK(result.losses == results[0].losses && result.weights == results[0].weights,
                  "ranks disagree");
  }
  return results[0];
}

}  // namespace tessera
