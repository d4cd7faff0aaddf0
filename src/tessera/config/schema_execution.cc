#include <vector>

#include "tessera/config/codec.h"
#include "tessera/config/run_config.h"
#include "tessera/config/schema_rows.h"
#include "tessera/config/schema_sections.h"

namespace tessera {
namespace {

using schema_rows::row;
using schema_rows::section;

ConfigSection parallel() {
  using S = ParallelSection;
  return section(
      "parallel",
      &RunConfig::parallel,
      "How the ranks divide the work. data * context * tensor * pipeline = ranks.",
      {row("ranks",
           &S::ranks,
           codec::size(),
           "Ranks of the run: threads of this process, or the processes that mpirun or srun "
           "started. Left out: what the launcher started, else data x context x tensor x "
           "pipeline."),
       row("data",
           &S::data,
           codec::size(),
           "Parts of the batch. Left out: the ranks that the other degrees leave."),
       row("tensor",
           &S::tensor,
           codec::size(),
           "Parts of each layer's weights: heads, feed-forward and vocabulary. Divides "
           "model.heads and model.kv_heads."),
       row("sequence_parallel",
           &S::sequence_parallel,
           codec::boolean(),
           "The ranks that share a layer's weights also divide the sequence where no weight is "
           "cut: less memory, and a fifth to a quarter more bytes between them, since backward "
           "gathers "
           "again what forward did not keep."),
       row("context",
           &S::context,
           codec::size(),
           "Parts of each sequence, for those that are longer than a rank has memory for: their "
           "length is a multiple of twice as many. Training state is cut over these ranks as over "
           "data ranks."),
       row("pipeline",
           &S::pipeline,
           codec::size(),
           "Ranks that do the layers one after the other, each with some of them, on several "
           "microbatches at a time. On the CPU results are bitwise the same with any number, at "
           "equal "
           "run.threads.")});
}

ConfigSection context() {
  using S = ContextSection;
  return section(
      "context",
      &RunConfig::context,
      "How context ranks share each sequence. Of parallel.context > 1.",
      {row("kind",
           &S::kind,
           codec::choice({ContextKind::kGather, ContextKind::kUlysses, ContextKind::kRing}),
           "Each rank gathers all keys and values for its own queries (gather); or they go round "
           "the ranks part by part, so that no rank has all of them (ring); or ranks exchange "
           "tokens for heads in attention, and back (ulysses): "
           "less traffic with many ranks, but it needs key/value heads that divide by "
           "parallel.tensor * parallel.context."),
       row("balance",
           &S::balance,
           codec::choice({ContextBalance::kZigzag, ContextBalance::kNone}),
           "Which tokens each rank has: two pieces, so that all have equal work in causal "
           "attention "
           "(zigzag), or one run, so that fewer documents are cut (none). Left out: zigzag; "
           "ulysses has none."),
       row("inner",
           &S::inner,
           codec::text(),
           "Level of the cluster that the inner ring of a double ring turns in; with ring. Rings "
           "follow the levels that context ranks lie on in any case: this refuses others.")});
}

ConfigSection pipeline() {
  using S = PipelineSection;
  return section(
      "pipeline",
      &RunConfig::pipeline,
      "Which rank of the pipeline does what, and when. Of parallel.pipeline > 1.",
      {row("schedule",
           &S::schedule,
           codec::path(),
           "\"gpipe\", \"1f1b\", \"interleaved\", \"looped-bfs\", \"zb-h1\", \"interleaved-zb\", "
           "\"zb-v\" or \"dualpipe-v\", PyTorch's name of one of them, or the path of a table "
           "that ends in .csv, as PyTorch and TorchTitan write them."),
       row("chunks",
           &S::chunks,
           codec::size(),
           "Stages per rank. Left out: 1, or 2 where the schedule has several."),
       row("layers",
           &S::layers,
           codec::counts(),
           "Layers of each stage, the first one first; 0: the embedding or the head alone. Left "
           "out: as many as make the step shortest by the cost of layers, embedding and head."),
       row("slices",
           &S::slices,
           codec::size(),
           "Runs of tokens in which a microbatch goes through the stages, each a step of the "
           "schedule (TeraPipe), of \"1f1b\" and \"gpipe\" or a table: the pipeline fills and "
           "drains "
           "as many times as fast. Sums are in another order.")});
}

ConfigSection state() {
  using S = StateSection;
  return section(
      "state",
      &RunConfig::state,
      "Over how many data ranks parameters, gradients and optimizer states are cut. A degree is a "
      "number of ranks or the name of a level of the cluster.",
      {row("preset",
           &S::preset,
           codec::text(),
           "\"ddp\", \"zero1\", \"zero2\", \"zero3\" or \"fsdp\", \"hsdp@LEVEL\" or "
           "\"mics@LEVEL\", which are one, \"shard-grad-op\", \"zeropp\", which needs a level "
           "\"node\", \"topo\" or \"topo-int8\", which need levels \"pair\" and \"node\". With one "
           "data rank all are the same."),
       row("param", &S::param, codec::degree(), "Parameters at rest. Left out: the preset's."),
       row("secondary",
           &S::secondary,
           codec::degree(),
           "A second copy of the parameters, cut less than they are, from which most gathers "
           "read. As param: none. Left out: the preset's; with param alone: as param."),
       row("secondary_use",
           &S::secondary_use,
           codec::choice({SecondaryUse::kAll, SecondaryUse::kBackward}),
           "The gathers that the second copy serves: all, or those of backward alone, as ZeRO++ "
           "does."),
       row("grad",
           &S::grad,
           codec::degree(),
           "Gradients between microbatches. Left out: the preset's."),
       row("optimizer",
           &S::optimizer,
           codec::degree(),
           "Master weights and moments. Left out: the preset's."),
       row("wire_param",
           &S::wire_param,
           codec::text(),
           "How gathered parameters travel: \"full\", which is the compute dtype, or \"f32\", "
           "\"bf16\", \"int8\" or \"int4\", or one of these four for each level, innermost first, "
           "with "
           "spaces between (\"f32 bf16 int4\"). "
           "Left out: the preset's, which is int8 for zeropp, topo and topo-int8, else full."),
       row("wire_grad",
           &S::wire_grad,
           codec::text(),
           "The same for reduced gradients: int4 for zeropp, topo and topo-int8."),
       row("wire_update",
           &S::wire_update,
           codec::text(),
           "The same for updated parameters on their way from master weights that are cut more "
           "than they are. Left out: int8 for topo-int8, else full."),
       row("wire_block",
           &S::wire_block,
           codec::between(2, 256),
           "Elements that share a scale in int8 and int4: a power of two.")});
}

ConfigSection comm() {
  using S = CommSection;
  return section("comm",
                 &RunConfig::comm,
                 "How ranks talk.",
                 {row("deadline_seconds",
                      &S::deadline_seconds,
                      codec::positive(),
                      "A rank that keeps the others waiting for longer ends the run."),
                  row("reduction",
                      &S::reduction,
                      codec::choice({Reduction::kOrdered, Reduction::kNative}),
                      "ordered: sums fold in the order of the ranks, the same on every layout and "
                      "machine. native: by NCCL, for ranks on GPUs of their own; sums repeat, in "
                      "an order of NCCL's. Left out: native where that can be, else ordered."),
                  row("overlap",
                      &S::overlap,
                      codec::boolean(),
                      "Move parameters and gradients beside the computation, on a thread of their "
                      "own. Results are bitwise the same."),
                  row("overlap_layers",
                      &S::overlap_layers,
                      codec::size(),
                      "How many layers that may be ahead of the computation or behind it: more "
                      "hides more and needs memory for as many layers.")});
}

ConfigSection cluster() {
  using S = ClusterSection;
  return section("cluster",
                 &RunConfig::cluster,
                 "The machine that the ranks run on.",
                 {row("file",
                      &S::file,
                      codec::path(),
                      "Cluster file (docs/formats.md): its levels order the ranks. \"local\": the "
                      "levels of this machine. Empty: the ranks are one level, \"local\".")});
}

ConfigSection memory() {
  using S = MemorySection;
  return section(
      "memory",
      &RunConfig::memory,
      "What is kept, what is computed again, and how much there is.",
      {row("recompute",
           &S::recompute,
           codec::choice({Recompute::kAuto,
                          Recompute::kNone,
                          Recompute::kFull,
                          Recompute::kSelective,
                          Recompute::kFullButLastStage,
                          Recompute::kAttention,
                          Recompute::kEverySecondProduct}),
           "auto: keep what there is room for, layer by layer, so that least is "
           "computed again. none: keep every activation for backward. full: keep each "
           "layer's input and compute the rest again. selective: compute again what is "
           "cheap, as norms. full_but_last_stage: the layers of a pipeline's last stage "
           "keep all. attention: compute again what attention makes. "
           "every_second_product: keep what attention makes, sums over ranks, and the "
           "first, third, ... product of each layer. Results are bitwise the same."),
       row("keep",
           &S::keep,
           codec::text_list(),
           "Ops that \"selective\" keeps, too: \"rms_norm\" of a layer, or "
           "\"rms_norm.1\", the second."),
       row("recompute_ops",
           &S::recompute_ops,
           codec::text_list(),
           "Ops that \"selective\" computes again, too."),
       row("recompute_layers",
           &S::recompute_layers,
           codec::recomputed_layers(),
           "Which layers compute anything again. \"8\": the first eight of each stage. "
           "\"4-11\": these."),
       row("offload_optimizer",
           &S::offload_optimizer,
           codec::choice({Offload::kOff, Offload::kAuto, Offload::kAll}),
           "off: optimizer state lies in the device's memory. all: it lies where offload_to says, "
           "and the update fetches and stores a piece at a time. auto: as much of it moves there "
           "as "
           "does not fit, unless it costs less to move something else or to compute activations "
           "again. Results are bitwise the same."),
       row("offload_parameters",
           &S::offload_parameters,
           codec::choice({Offload::kOff, Offload::kAuto, Offload::kAll}),
           "Likewise of parameters. Those of a layer are fetched while the layer before computes, "
           "in "
           "forward and in backward."),
       row("offload_activations",
           &S::offload_activations,
           codec::choice({Offload::kOff, Offload::kAuto, Offload::kAll}),
           "Likewise of what forward keeps for backward. It is stored while the next layer "
           "computes, "
           "and fetched while the layer before does."),
       row("offload_to",
           &S::offload_to,
           codec::choice({OffloadTo::kAuto, OffloadTo::kHost, OffloadTo::kFile}),
           "Where what is offloaded lies. host: in the host's memory, beside a GPU's. file: in a "
           "file of each rank, which is gone when the process ends. auto: host on GPUs, file on "
           "CPUs."),
       row("offload_dir",
           &S::offload_dir,
           codec::path(),
           "Directory of these files, on a disk with room for them. Empty: run.dir."),
       row("limit_bytes",
           &S::limit_bytes,
           codec::bytes(),
           "What a rank may use. A plan that needs more is refused before it starts. 0: "
           "what the machine has, divided among its ranks."),
       row("chosen",
           &S::chosen,
           codec::text(),
           "What \"auto\" chose, in the config.toml of a run, whose next start takes "
           "it: for as many bytes or little more, where the run takes as many as then if "
           "all is kept. \"\": choose.")});
}

ConfigSection checkpoint() {
  using S = CheckpointSection;
  return section(
      "checkpoint",
      &RunConfig::checkpoint,
      "When state is saved and where a run starts from.",
      {row("every",
           &S::every,
           codec::size_or_zero(),
           "Steps between checkpoints, beside the one at the end. 0: none by steps."),
       row("every_minutes",
           &S::every_minutes,
           codec::not_negative(),
           "Minutes after which a step is saved where no checkpoint was made meanwhile, by rank "
           "0's "
           "clock; which step it is changes nothing else. 0: none by time, so that with every = 0 "
           "a "
           "run that is killed has nothing. Left out: 15 where every = 0, else 0."),
       row("keep",
           &S::keep,
           codec::size_or_zero(),
           "Newest checkpoints that stay on disk, once a step after the newest, or at the end of "
           "the run one that changes nothing, was finite; a run that is stopped or fails leaves "
           "the rest to the next start. 0: all."),
       row("keep_best",
           &S::keep_best,
           codec::boolean(),
           "Of the checkpoints at whose step the run validated, the one with the lowest loss stays "
           "on disk too; checkpoints/best links to it."),
       row("async",
           &S::async,
           codec::boolean(),
           "Write in the background, from a copy in the host's memory, while training goes on. "
           "With "
           "every = 0 on CPUs there is no room for the copy in the plan: training waits."),
       row("resume",
           &S::resume,
           codec::path(),
           "\"auto\": from the newest checkpoint in run.dir, if any. \"none\": from the "
           "start, which is refused where run.dir has a checkpoint. Else the path of a checkpoint, "
           "or of a run directory for its newest."),
       row("fall_back",
           &S::fall_back,
           codec::boolean(),
           "With resume = \"auto\": a newest checkpoint that is damaged is set aside as "
           "damaged-step-<number>, with a warning, and the run goes on from the newest that is "
           "whole. false, or a checkpoint that is named: an error."),
       row("deadline_seconds",
           &S::deadline_seconds,
           codec::positive(),
           "How long ranks wait for each other's disks while a checkpoint is written or loaded.")});
}

ConfigSection log() {
  using S = LogSection;
  return section("log",
                 &RunConfig::log,
                 "What is shown.",
                 {row("every",
                      &S::every,
                      codec::size(),
                      "Steps between progress lines where the output is not a terminal."),
                  row("tensorboard",
                      &S::tensorboard,
                      codec::boolean(),
                      "Write TensorBoard event files beside metrics.jsonl.")});
}

ConfigSection sample() {
  using S = SampleSection;
  return section(
      "sample",
      &RunConfig::sample,
      "The continuation that `tessera train` prints at its end.",
      {row("prompt", &S::prompt, codec::text(), "Text to continue. Empty: none is printed."),
       row("tokens", &S::tokens, codec::size(), "Length of the continuation in tokens."),
       row("temperature",
           &S::temperature,
           codec::not_negative(),
           "Randomness of the choice. 0: always the likeliest token.")});
}

ConfigSection passes() {
  using S = PassesSection;
  return section(
      "passes",
      &RunConfig::passes,
      "How the graph is compiled.",
      {row("fuse",
           &S::fuse,
           codec::boolean(),
           "Fuse neighbouring operations into one kernel. Results stay the same, bit by bit."),
       row("group_gemms",
           &S::group_gemms,
           codec::boolean(),
           "Compute products that share an input (q, k, v; gate, up) as one; changes the last "
           "bits."),
       row("gelu_products",
           &S::gelu_products,
           codec::boolean(),
           "On a GPU, apply gelu and its gradient within the products around it (cuBLASLt's "
           "epilogues, for bf16); changes the last bits."),
       row("attention",
           &S::attention,
           codec::choice(
               {AttentionOps::kFlash, AttentionOps::kFusedSoftmax, AttentionOps::kUnfused}),
           "What attention is made of, on CPUs: one op (flash); as systems without such a kernel "
           "have it, two batched products around a fused scale, mask and softmax (fused_softmax), "
           "or around these one by one (unfused), which keep a probability for each pair of "
           "tokens. Changes the last bits."),
       row("dump",
           &S::dump,
           codec::path(),
           "Directory that receives the output of every pass as text. Empty: none.")});
}

}  // namespace

std::vector<ConfigSection> execution_sections() {
  return {parallel(),
          context(),
          pipeline(),
          state(),
          comm(),
          cluster(),
          memory(),
          checkpoint(),
          log(),
          sample(),
          passes()};
}

}  // namespace tessera
