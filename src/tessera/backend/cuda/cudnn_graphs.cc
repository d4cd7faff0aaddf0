#include "tessera/backend/cuda/cudnn_graphs.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "tessera/backend/cuda/cudnn_plan.h"
#include "tessera/base/error.h"
#include "tessera/base/log.h"

namespace tessera::cuda {
namespace {

// A problem with its plan.
struct Planned {
  FlashProblem problem;
  FlashGraph written;
  std::optional<CudnnPlan> plan;
};

class CudnnGraphs final : public Graphs {
 public:
  explicit CudnnGraphs(const Cudnn& cudnn) : cudnn_(cudnn) {
    check(cudnn_, cudnn_.create(&handle_), "cudnnCreate()");
  }

  ~CudnnGraphs() override { cudnn_.destroy(handle_); }

  CudnnGraphs(const CudnnGraphs&) = delete;
  CudnnGraphs& operator=(const CudnnGraphs&) = delete;

  bool run(CUstream_st* stream,
           const FlashProblem& problem,
           const FlashPointers& pointers,
           std::span<std::byte> workspace) override {
    const Planned& planned = plan_of(problem);
    if (!planned.plan) {
      return false;
    }
    TESSERA_CHECK(static_cast<std::int64_t>(workspace.size()) >= planned.plan->workspace_bytes(),
                  "{} bytes of workspace for attention, expected {}",
                  workspace.size(),
                  planned.plan->workspace_bytes());
    check(cudnn_, cudnn_.set_stream(handle_, stream), "cudnnSetStream()");
    planned.plan->run(handle_, planned.written.by_place(pointers), workspace.data());
    return true;
  }

 private:
  const Planned& plan_of(const FlashProblem& problem) {
    const auto known = std::ranges::find_if(
        plans_, [&](const std::unique_ptr<Planned>& made) { return made->problem == problem; });
    if (known != plans_.end()) {
      return **known;
    }
    auto planned = std::make_unique<Planned>(
        Planned{.problem = problem, .written = flash_graph(problem), .plan = std::nullopt});
    std::string reasons;
    planned->plan = CudnnPlan::make(cudnn_,
                                    {.handle = handle_},
                                    planned->written.graph,
                                    flash_workspace_bytes(problem),
                                    reasons);
    plans_.push_back(std::move(planned));
    if (!plans_.back()->plan) {
      log_warning(
          format("attention {}by own kernels, which are slower: cuDNN {} has none for {} x "
                 "{} tokens of {} heads, {} wide:{}",
                 problem.backward ? "backward " : "",
                 cudnn_version(),
                 problem.batch,
                 problem.tokens,
                 problem.heads,
                 problem.channels,
                 reasons));
    }
    return *plans_.back();
  }

  const Cudnn& cudnn_;
  cudnnHandle_t handle_ = nullptr;
  std::vector<std::unique_ptr<Planned>> plans_;  // a run has a few
};

class NoGraphs final : public Graphs {
 public:
  bool run(CUstream_st* /*stream*/,
           const FlashProblem& /*problem*/,
           const FlashPointers& /*pointers*/,
           std::span<std::byte> /*workspace*/) override {
    static std::atomic_flag said;
    if (!said.test_and_set()) {
      log_warning(
          "attention by own kernels, which are slower: no cuDNN 9 (libcudnn.so.9); tessera doctor "
          "says how to get it");
    }
    return false;
  }
};

}  // namespace

std::unique_ptr<Graphs> make_cudnn_graphs() {
  if (const Cudnn* const cudnn = find_cudnn()) {
    return std::make_unique<CudnnGraphs>(*cudnn);
  }
  return std::make_unique<NoGraphs>();
}

}  // namespace tessera::cuda
