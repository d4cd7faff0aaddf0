// Several ranks on CUDA devices, which they share where there are fewer: layouts change nothing
// there either, and follow the CPU's. On a device or emulated.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/backend/cuda/kernels/kernels_under_test.h"
#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/test_error.h"
#include "tessera/comm/nccl/host_native.h"
#include "tests/distributed/draw_run.h"
#include "tests/distributed/expect_results.h"
#include "tests/distributed/run_ranks.h"

namespace tessera {
namespace {

// Emulated kernels take minutes where a device takes seconds.
#ifdef TESSERA_EMULATED_CUDA
constexpr std::int64_t kSteps = 2;
constexpr std::int64_t kMicrobatches = 2;
constexpr bool kIsEmulated = true;
#else
constexpr std::int64_t kSteps = 3;
constexpr std::int64_t kMicrobatches = 3;
constexpr bool kIsEmulated = false;
#endif

class CudaLayouts : public testing::Test {
 protected:
  void SetUp() override {
    if (std::string reason; cuda::kernels_under_test(reason) == nullptr) {
      GTEST_SKIP() << reason;
    }
  }

  static RankRun on_cpu(std::int64_t ranks) {
    return {.model = odd_llama(),
            .mesh = ranks == 1 ? Mesh{} : virtual_mesh(ranks),
            .global_batch = 4,
            .sequence_length = 8,
            .steps = kSteps};
  }

  static RankRun on_cuda(RankRun run) {
    run.device = [] {
      std::string reason;
      return cuda::kernels_under_test(reason);
    };
    return run;
  }

  static void expect_close(const RankResult& a, const RankResult& b, float tolerance) {
    expect_close(a, b, tolerance, tolerance);
  }

  // With another tolerance after the first step's update.
  static void expect_close(const RankResult& a, const RankResult& b, float first, float later) {
    ASSERT_EQ(a.losses.size(), b.losses.size());
    for (std::size_t step = 0; step < a.losses.size(); ++step) {
      const float tolerance = step == 0 ? first : later;
      EXPECT_NEAR(a.losses[step], b.losses[step], tolerance) << "step " << step + 1;
      EXPECT_NEAR(a.grad_norms[step], b.grad_norms[step], 10 * tolerance * b.grad_norms[step])
          << "step " << step + 1;
    }
    EXPECT_EQ(a.sent, b.sent);
  }
};

TEST_F(CudaLayouts, PlacementsComputeTheSame) {
  for (const std::int64_t ranks : {2, 4}) {
    RankRun run = on_cuda(on_cpu(ranks));
    run.placement = {.param = 1, .secondary = 1, .grad = 1, .optimizer = 1};
    const RankResult whole = run_ranks(run);
    RankRun cpu = on_cpu(ranks);
    cpu.placement = run.placement;
    expect_close(whole, run_ranks(cpu), 1e-4F);
    run.placement = {.param = ranks, .secondary = ranks, .grad = ranks, .optimizer = ranks};
    const RankResult sharded = run_ranks(run);
    expect_equal(sharded, whole);
    run.overlap = true;
    expect_equal(run_ranks(run), sharded);
  }
}

// Keys and values go round two ranks, and two levels of two.
TEST_F(CudaLayouts, RingsComputeTheSame) {
  for (const std::int64_t ranks : {2, 4}) {
    RankRun cpu = on_cpu(ranks);
    cpu.mesh = make_mesh(load_cluster(virtual_cluster(ranks)), {.context = ranks});
    cpu.sequence_length = 32;
    cpu.document_length = 11;
    cpu.context.kind = ContextKind::kRing;
    RankRun run = on_cuda(cpu);
    const RankResult result = run_ranks(run);
    expect_close(result, run_ranks(cpu), 1e-4F);
    run.overlap = true;
    run.recompute = true;
    expect_equal(run_ranks(run), result);
  }
}

// As on the CPU: bitwise where gradients are summed over the same levels, and with one microbatch.
TEST_F(CudaLayouts, PresetsComputeTheSame) {
  for (const std::int64_t microbatches : {std::int64_t{1}, kMicrobatches}) {
    RankRun cpu = on_cpu(4);
    cpu.microbatches = microbatches;
    cpu.global_batch = 4 * microbatches;
    std::map<std::int64_t, RankResult> by_degree;
    for (const Placement& placement : preset_placements(cpu.mesh)) {
      cpu.placement = placement;
      const RankResult result = run_ranks(on_cuda(cpu));
      const auto [found, is_new] =
          by_degree.try_emplace(microbatches == 1 ? 0 : placement.grad, result);
      if (is_new) {
        expect_close(result, run_ranks(cpu), 1e-4F);
      } else {
        expect_equal(result, found->second);
      }
    }
  }
}

// Data ranks of tensor ranks; what is computed again is the same.
TEST_F(CudaLayouts, RecomputesTheSame) {
  RankRun cpu = on_cpu(4);
  cpu.mesh = virtual_mesh(4, 2);
  cpu.model.kv_heads = 2;
  cpu.microbatches = 2;
  cpu.moments = DType::kBF16;
  cpu.placement = {.param = 2, .secondary = 2, .grad = 2, .optimizer = 2};
  const RankResult kept = run_ranks(on_cuda(cpu));
  expect_close(kept, run_ranks(cpu), 1e-4F);
  cpu.recompute = true;
  expect_equal(run_ranks(on_cuda(cpu)), kept);
}

// What lies in the host's memory is fetched and stored beside the kernels.
TEST_F(CudaLayouts, OffloadsTheSame) {
  for (const std::int64_t ranks : {1, 2}) {
    RankRun cpu = on_cpu(ranks);
    cpu.microbatches = 2;
    cpu.placement = {.param = ranks, .secondary = ranks, .grad = ranks, .optimizer = ranks};
    const RankResult kept = run_ranks(on_cuda(cpu));
    cpu.offload = {.optimizer = Space::kHost,
                   .parameters = Space::kHost,
                   .activations = Space::kHost,
                   .piece_bytes = kPageBytes,
                   .least_bytes = 1};
    cpu.overlap = ranks > 1;
    EXPECT_GT(rank_program(cpu, nullptr).host_bytes, 0);
    expect_equal(run_ranks(on_cuda(cpu)), kept);
  }
}

TEST_F(CudaLayouts, Bf16FollowsTheCpu) {
  for (const char* const name : {"llama3", "gpt2", "neox"}) {
    SCOPED_TRACE(name);
    RankRun cpu = on_cpu(2);
    cpu.other = odd_model(name);
    cpu.dtype = DType::kBF16;
    cpu.placement = {.param = 2, .secondary = 2, .grad = 2, .optimizer = 2};
    expect_close(run_ranks(on_cuda(cpu)), run_ranks(cpu), 1e-2F);
  }
}

// Sizes that tensor cores take, and those that need the codes widened. A code that flips is a part
// in 16 of its value.
TEST_F(CudaLayouts, Float8FollowsTheCpu) {
  for (const bool rowwise : {false, true}) {
    for (const std::int64_t dim : {48, 40}) {
      SCOPED_TRACE(format("{} dim {}", rowwise ? "rowwise" : "tensorwise", dim));
      RankRun cpu = on_cpu(2);
      cpu.model.dim = dim;
      cpu.model.heads = 4;
      cpu.model.kv_heads = 2;
      cpu.model.ffn = 2 * dim;
      cpu.float8 = {.rowwise = rowwise, .head = dim == 48};
      cpu.placement = {.param = 2, .secondary = 2, .grad = 2, .optimizer = 2};
      const RankResult cuda = run_ranks(on_cuda(cpu));
      expect_close(cuda, run_ranks(cpu), 1e-3F);
      RankRun cut = cpu;
      cut.mesh = virtual_mesh(2, 2);
      cut.placement = {};
      cut.sequence_parallel = true;
      expect_close(run_ranks(on_cuda(cut)), run_ranks(cut), 1e-3F);
      RankRun exact = cpu;
      exact.float8.reset();
      EXPECT_NE(run_ranks(on_cuda(exact)).losses, cuda.losses);
    }
  }
}

// int8 and int4 on the wires: codes that flip with the last bit of a value change little.
TEST_F(CudaLayouts, QuantizedWiresFollowTheCpu) {
  for (const WireFormat format : {WireFormat::kBF16, WireFormat::kInt8, WireFormat::kInt4}) {
    const Wire wire = {.formats = {format}, .block = 64};
    RankRun cpu = on_cpu(2);
    cpu.placement = {.param = 2, .secondary = 2, .grad = 2, .optimizer = 2};
    cpu.wires = {.param = wire, .secondary = wire, .grad = wire, .update = wire};
    expect_close(run_ranks(on_cuda(cpu)), run_ranks(cpu), 2e-2F);
  }
}

// Cut products, heads, embedding and vocabulary, which two ranks do not divide.
TEST_F(CudaLayouts, TensorParallelismFollowsTheCpu) {
  for (const bool sequence_parallel : {false, true}) {
    RankRun cpu = on_cpu(2);
    cpu.mesh = virtual_mesh(2, 2);
    cpu.model.kv_heads = 2;
    cpu.sequence_parallel = sequence_parallel;
    expect_close(run_ranks(on_cuda(cpu)), run_ranks(cpu), 1e-4F);
  }
}

// The other families, whole and with adapters, whose products apply gelu, on data ranks, tensor
// ranks and both; emulated where tensors are cut.
TEST_F(CudaLayouts, OtherModelsFollowTheCpu) {
  struct Degrees {
    std::int64_t ranks;
    std::int64_t tensor;
  };

  for (const char* const name : {"llama3", "gpt2", "neox"}) {
    for (const bool is_adapted : {false, true}) {
      for (const Degrees degrees : {Degrees{2, 1}, Degrees{4, 2}, Degrees{4, 4}}) {
        if ((is_adapted && degrees.tensor == 4) || (kIsEmulated && degrees.tensor == 1)) {
          continue;
        }
        SCOPED_TRACE(format("{}{} on {} ranks, {} of them tensor ranks",
                            name,
                            is_adapted ? " adapted" : "",
                            degrees.ranks,
                            degrees.tensor));
        RankRun cpu = on_cpu(degrees.ranks);
        cpu.mesh = virtual_mesh(degrees.ranks, degrees.tensor);
        cpu.other =
            odd_model(name, is_adapted ? attention_and_feed_forward() : std::vector<std::string>());
        cpu.sequence_parallel = degrees.tensor > 1;
        cpu.microbatches = 2;
        cpu.placement.optimizer = degrees.ranks / degrees.tensor;
        // Emulated, one of each model has its layers computed again, and is then the same.
        const bool both = !kIsEmulated || degrees.tensor == 4;
        cpu.recompute = kIsEmulated && !both && is_adapted;
        const RankResult kept = run_ranks(on_cuda(cpu));
        expect_close(kept, run_ranks(cpu), 1e-4F);
        if (both) {
          cpu.recompute = true;
          expect_equal(run_ranks(on_cuda(cpu)), kept);
        }
      }
    }
  }
}

// Models and layouts that nobody chose. Codes of 8 bits flip with the last bit of a value, and
// Hopper's tensor cores add up products of theirs in about 14 bits: noise of that size in the CPU's
// products moves the losses of one of these runs by 0.06 after an update, which takes nothing but
// the sign of a small gradient, and those of the others, and every run's first, by less than 0.001.
TEST_F(CudaLayouts, RandomRunsFollowTheCpu) {
  constexpr std::uint64_t kRuns = kIsEmulated ? 3 : 60;
  for (std::uint64_t seed = 0; seed < kRuns; ++seed) {
    Draw draw(seed);
    RankRun cpu = draw_run(draw);
    SCOPED_TRACE(text(cpu));
    const RankResult kept = run_ranks(on_cuda(cpu));
    const float tolerance = cpu.dtype == DType::kBF16 ? 2e-2F : cpu.float8 ? 5e-3F : 1e-4F;
    expect_close(kept, run_ranks(cpu), tolerance, cpu.float8 ? 0.1F : tolerance);
    cpu.recompute = true;
    expect_equal(run_ranks(on_cuda(cpu)), kept);
  }
}

// Where a library of the devices moves their memory, nothing is waited for within a step but the
// first: events order what the streams were given, graphs among it. What the wait at its end throws
// ends the run. A real graph cannot hold what stands for that library here, whose ranks wait for
// their streams: there each kernel is begun by itself.
TEST_F(CudaLayouts, EventsOrderStreamsOfNativeCollectives) {
  RankRun run = on_cpu(2);
  std::string reason;
  run.device = [may_record = cuda::kernels_under_test(reason)->name() != "cuda"] {
    std::string none;
    return cuda::kernels_under_test(none, {.may_record = may_record});
  };
  run.placement = {.param = 2, .secondary = 2, .grad = 2, .optimizer = 2};
  run.overlap = true;
  run.steps = 4;
  const RankResult expected = run_ranks(run);
  std::atomic<int> waits = 0;
  run.join = [&](World& host, const NcclOptions& options) {
    EXPECT_EQ(options.device, 0);
    return std::make_unique<HostNative>(host, options, waits);
  };
  for (const bool overlap : {true, false}) {
    run.overlap = overlap;
    waits = 0;
    expect_equal(run_ranks(run), expected);
    const int waits_of_some = waits;
    RankRun longer = run;
    longer.steps += 3;
    waits = 0;
    run_ranks(longer);
    EXPECT_GE(waits_of_some, 2 * run.steps);
    EXPECT_GE(waits - waits_of_some, 2 * 3);  // on two ranks
    EXPECT_LT(waits - waits_of_some, 6 * 3);
  }

  waits = 0;
  run.join = [&](World& host, const NcclOptions& options) {
    auto native = std::make_unique<HostNative>(host, options, waits);
    native->fails_at = 5;
    return native;
  };
  EXPECT_THAT(error_of(ErrorCode::kTimeout, [&] { run_ranks(run); }),
              testing::HasSubstr("all_gather: no answer"));
}

}  // namespace
}  // namespace tessera
