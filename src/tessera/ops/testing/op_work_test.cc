#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/base/format.h"
#include "tessera/ops/all_ops.h"
#include "tessera/ops/testing/all_samples.h"

namespace tessera::conformance {
namespace {

double sum_of(const Works& works, double Work::* part) {
  double sum = 0.0;
  for (const Work& work : works) {
    sum += work.*part;
  }
  return sum;
}

double bytes_of(Types types) {
  double sum = 0.0;
  for (const TensorType& type : types) {
    sum += static_cast<double>(type.num_bytes());
  }
  return sum;
}

// All but views, and ops that use some rows of an operand or of a result.
TEST(OpWork, ReadsEveryOperandAndWritesEveryResultOnce) {
  const std::set<std::string> others = {
      "concat", "embedding", "embedding_backward", "local_slice", "slice", "take", "write_rows"};
  std::int64_t checked = 0;
  for (const Sample& sample : all_samples()) {
    if (!others.contains(info(*sample.op).name)) {
      const Works works = work(*sample.op, sample.operands);
      EXPECT_EQ(sum_of(works, &Work::bytes_read), bytes_of(sample.operands)) << full_name(sample);
      EXPECT_EQ(sum_of(works, &Work::bytes_written), bytes_of(infer(*sample.op, sample.operands)))
          << full_name(sample);
      ++checked;
    }
  }
  EXPECT_GT(checked, 1000);
}

TEST(OpWork, OfAProductIsOneOfItsShape) {
  const TensorTypes in =
      types(DType::kBF16, {"?[seq=6, batch=5, embed=24]", "?[ffn=20, embed=24]"});
  const Works forward = work(*make_op(MatmulAttrs{.transpose_b = true, .dtype = DType::kBF16}), in);
  ASSERT_EQ(forward.size(), 1);
  EXPECT_EQ(forward[0],
            (Work{.kind = WorkKind::kProduct,
                  .m = 30,
                  .n = 20,
                  .k = 24,
                  .dtype = DType::kBF16,
                  .row_bytes = 8,  // of 48, 48 and 40
                  .bytes_read = 2.0 * (30 * 24 + 20 * 24),
                  .bytes_written = 2.0 * 30 * 20}));
  EXPECT_EQ(flop(forward[0]), 2.0 * 30 * 20 * 24);

  // The gradient of the weight, added to an f32 sum: its matrices lie along m and n.
  const TensorTypes back = {parse_tensor_type("bf16[seq=6, batch=5, ffn=20]"),
                            in[0],
                            parse_tensor_type("f32[ffn=20, embed=24]")};
  const Works sum =
      work(*make_op(MatmulAttrs{.transpose_a = true, .contract = 2, .accumulate = true}), back);
  ASSERT_EQ(sum.size(), 1);
  EXPECT_EQ(sum[0].m, 20);
  EXPECT_EQ(sum[0].n, 24);
  EXPECT_EQ(sum[0].k, 30);
  EXPECT_EQ(sum[0].row_bytes, 8);  // of 40, 48 and 96
  EXPECT_EQ(sum[0].bytes_read, 2.0 * 30 * (20 + 24) + 4.0 * 20 * 24);
  EXPECT_EQ(sum[0].bytes_written, 4.0 * 20 * 24);
}

// Unfused attention multiplies all pairs, in each of its products and of their gradients.
TEST(OpWork, OfBatchedProductsIsOneForEachHead) {
  const TensorTypes scores_in = types(
      DType::kBF16,
      {"?[batch=2, seq=64, heads=6, head_dim=8]", "?[batch=2, seq=40, kv_heads=3, head_dim=8]"});
  const Works scores = work(*make_op(BatchedProductAttrs{.group = 2}), scores_in);
  ASSERT_EQ(scores.size(), 1);
  EXPECT_EQ(scores[0],
            (Work{.kind = WorkKind::kProduct,
                  .m = 64,
                  .n = 40,
                  .k = 8,
                  .batch = 12,
                  .dtype = DType::kBF16,
                  .row_bytes = 16,  // of 16, 16 and 80
                  .bytes_read = 2.0 * (2 * 64 * 6 * 8 + 2 * 40 * 3 * 8),
                  .bytes_written = 2.0 * 2 * 6 * 64 * 40}));

  // The gradient of keys adds up the heads of a group.
  const TensorTypes keys_in =
      types(DType::kBF16,
            {"?[batch=2, heads=6, seq=64, keys=40]", "?[batch=2, seq=64, heads=6, head_dim=8]"});
  const Works keys =
      work(*make_op(BatchedProductAttrs{.form = BatchedForm::kKeys, .group = 2}), keys_in);
  ASSERT_EQ(keys.size(), 1);
  EXPECT_EQ(keys[0].m, 40);
  EXPECT_EQ(keys[0].n, 8);
  EXPECT_EQ(keys[0].k, 2 * 64);
  EXPECT_EQ(keys[0].batch, 2 * 3);
  EXPECT_EQ(flop(keys[0]), flop(scores[0]));
}

// What the mask lets through is that of one document, whatever documents there are.
TEST(OpWork, OfAttentionHasThePairsOfItsMask) {
  const TensorTypes in = types(DType::kBF16,
                               {"?[batch=2, seq=64, heads=6, head_dim=8]",
                                "?[batch=2, seq=64, kv=3, head_dim=8]",
                                "?[batch=2, seq=64, kv=3, head_dim=8]",
                                "i32[batch=2, seq=64]",
                                "i32[batch=2, seq=64]",
                                "i32[batch=2, seq=64]",
                                "i32[batch=2, seq=64]"});

  struct Mask {
    AttentionAttrs attrs;
    double pairs_of_a_row;
    std::int64_t borders;
  };

  const double window = 16 * 17 / 2.0 + (64 - 16) * 16;
  for (const Mask& mask : {Mask{{.causal = false}, 64.0 * 64, 0},
                           Mask{{.causal = true}, 64.0 * 64 / 2, 1},
                           Mask{{.causal = true, .whole_rows = true}, 64.0 * 64 / 2, 1},
                           Mask{{.causal = true, .window = 16}, window, 2}}) {
    const Works works = work(*make_op(mask.attrs), in);
    ASSERT_EQ(works.size(), 1);
    EXPECT_EQ(works[0].kind, WorkKind::kAttention);
    EXPECT_EQ(works[0].m, 64);
    EXPECT_EQ(works[0].n, 64);
    EXPECT_EQ(works[0].k, 8);
    EXPECT_EQ(works[0].batch, 2 * 6);
    EXPECT_EQ(works[0].pairs, 2 * 6 * mask.pairs_of_a_row);
    EXPECT_EQ(works[0].borders, mask.borders);
    EXPECT_EQ(flop(works[0]), 4.0 * 8 * works[0].pairs);
  }
}

// 70 rows in chunks of 32: two of these, and one of 6.
TEST(OpWork, OfCrossEntropyIsItsChunks) {
  constexpr double kRows = 70;
  constexpr double kVocab = 48;
  constexpr double kChannels = 24;
  const TensorTypes in = types(
      DType::kBF16, {"?[rows=70, embed=24]", "?[vocab=48, embed=24]", "i32[rows=70]", "f32[]"});
  const Works works = work(*make_op(CrossEntropyAttrs{.gradients = true, .chunk = 32}), in);
  ASSERT_EQ(works.size(), 8);
  for (std::size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(works[i].times, i < 4 ? 2 : 1);
    EXPECT_EQ(works[i].kind, i % 4 == 1 ? WorkKind::kStream : WorkKind::kProduct);
    const std::int64_t rows = i < 4 ? 32 : 6;
    switch (i % 4) {
      case 0:
        EXPECT_EQ(works[i].m * works[i].n * works[i].k, rows * 48 * 24);
        EXPECT_EQ(works[i].m, rows);
        EXPECT_EQ(works[i].k, 24);
        break;
      case 2:
        EXPECT_EQ(works[i].m, rows);
        EXPECT_EQ(works[i].k, 48);
        break;
      case 3:
        EXPECT_EQ(works[i].m, 48);
        EXPECT_EQ(works[i].k, rows);
        break;
      default:
        break;
    }
  }
  double sum = 0.0;
  for (const Work& part : works) {
    sum += flop(part);
  }
  EXPECT_EQ(sum, kRows * kVocab * (3 * 2 * kChannels + 6));
  // Logits are written and read twice in f32, and their gradient written and read twice in bf16;
  // the head is read twice for each of three chunks, and x for the head's gradient, which is
  // written for all and read for all but the first; each once is the op's own.
  constexpr double kLogits = kRows * kVocab;
  constexpr double kHead = kVocab * kChannels;
  EXPECT_EQ(sum_of(works, &Work::bytes_again),
            kLogits * (4 + 2 * 4 + 2 + 2 * 2) + 5 * 2 * kHead + 2 * kRows * kChannels +
                2 * 2 * 4 * kHead);
}

// 70 rows in chunks of 32, whose sums two ranks join.
TEST(OpWork, OfACutVocabularyHasTheWiresOfEachChunk) {
  const TensorTypes in = types(
      DType::kBF16, {"?[rows=70, embed=24]", "?[vocab=48, embed=24]", "i32[rows=70]", "f32[]"});
  const CrossEntropyAttrs whole{.gradients = true, .chunk = 32};
  CrossEntropyAttrs cut = whole;
  cut.axes = {{.name = "tensor", .size = 2}};
  cut.whole_vocab = 96;
  const Works works = work(*make_op(cut), in);
  // Logits, sums, largest, shift, sums of all, softmax, and the two gradients.
  ASSERT_EQ(works.size(), 3 * 9);
  std::int64_t wires = 0;
  for (std::size_t i = 0; i < works.size(); ++i) {
    const bool is_wire = i % 9 == 2 || i % 9 == 4;
    const bool is_product = i % 9 == 0 || i % 9 > 6;
    EXPECT_EQ(works[i].kind,
              is_wire      ? WorkKind::kWire
              : is_product ? WorkKind::kProduct
                           : WorkKind::kStream);
    EXPECT_EQ(works[i].times, 1);
    wires += is_wire ? 1 : 0;
  }
  EXPECT_EQ(std::ssize(collectives(*make_op(cut), in)), wires);
  EXPECT_EQ(works[1].elementwise_flop, 32.0 * 48 * 3);
  EXPECT_EQ(works[6].elementwise_flop, 32.0 * 48 * 3);
  EXPECT_EQ(works[1].bytes_again, 32.0 * (48 * 4 + 20));
  EXPECT_EQ(works[3].bytes_again, 32.0 * 2 * 20);
  EXPECT_EQ(works[5].bytes_again, 32.0 * 20);
  EXPECT_EQ(works[6].bytes_again, 32.0 * 48 * (4 + 2));

  // The logits are read as often as those of a whole vocabulary.
  const OpRef op = make_op(whole);
  EXPECT_EQ(cost(*make_op(cut), in), cost(*op, in));
  EXPECT_EQ(sum_of(works, &Work::bytes_again),
            sum_of(work(*op, in), &Work::bytes_again) + 70.0 * 4 * 20);
}

// Each row that is added to is read and written, in a table that was cleared, too.
TEST(OpWork, OfAnEmbeddingsGradientIsThatOfItsRows) {
  const auto of = [](bool accumulate, std::string_view dy, std::string_view ids) {
    TensorTypes in = types(DType::kF32, {dy, ids});
    if (accumulate) {
      in.push_back(parse_tensor_type("f32[vocab=100, embed=4]"));
    }
    return work(*make_op(EmbeddingBackwardAttrs{
                    .vocab = 100, .vocab_dim = "vocab", .accumulate = accumulate}),
                in);
  };
  const Works cleared = of(false, "?[seq=10, embed=4]", "i32[seq=10]");
  ASSERT_EQ(cleared.size(), 3);
  EXPECT_EQ(cleared[0], (Work{.bytes_written = 100.0 * 4 * 4}));
  EXPECT_EQ(
      cleared[1],
      (Work{
          .times = 2, .dtype = DType::kI32, .bytes_read = 10.0 * 4, .bytes_again = 10.0 * 3 * 8}));
  EXPECT_EQ(cleared[2].kind, WorkKind::kGather);
  EXPECT_EQ(cleared[2].bytes_read, 10.0 * 4 * 4);
  EXPECT_EQ(cleared[2].bytes_written, 0.0);
  EXPECT_EQ(cleared[2].bytes_again, 10.0 * 8 + 2 * 10.0 * 4 * 4);

  const Works added = of(true, "?[seq=10, embed=4]", "i32[seq=10]");
  ASSERT_EQ(added.size(), 2);
  EXPECT_EQ(added[1].bytes_read, 2 * 10.0 * 4 * 4);
  EXPECT_EQ(added[1].bytes_written, 10.0 * 4 * 4);
  EXPECT_EQ(added[1].bytes_again, 10.0 * 8);

  const Works many = of(false, "?[seq=300, embed=4]", "i32[seq=300]");
  EXPECT_EQ(many[2].bytes_again, 300.0 * 8 + 2 * 100.0 * 4 * 4);
}

// Heads in groups of two, causal.
TEST(OpWork, OfAttentionBackwardHasWhatItsKernelsKeep) {
  const TensorTypes in = types(DType::kBF16,
                               {"?[batch=2, seq=64, heads=6, head_dim=8]",
                                "?[batch=2, seq=64, heads=6, head_dim=8]",
                                "?[batch=2, seq=64, kv=3, head_dim=8]",
                                "?[batch=2, seq=64, kv=3, head_dim=8]",
                                "?[batch=2, seq=64, heads=6, head_dim=8]",
                                "f32[batch=2, heads=6, seq=64]",
                                "i32[batch=2, seq=64]",
                                "i32[batch=2, seq=64]",
                                "i32[batch=2, seq=64]",
                                "i32[batch=2, seq=64]"});
  constexpr double kQueries = 2 * 64 * 6;
  constexpr double kDelta = kQueries * 4;
  constexpr double kOfHeads = 2 * kQueries * 8 * 2;  // dk and dv
  constexpr double kSlopes = kQueries * 64 / 2 * 2;
  constexpr double kSums = kQueries * 8 * 4;
  const auto again = [&](const AttentionBackwardAttrs& attrs) {
    return sum_of(work(*make_op(attrs), in), &Work::bytes_again);
  };
  EXPECT_EQ(again({.whole_rows = true}), 2 * (kDelta + kOfHeads + kSlopes));
  EXPECT_EQ(again({.causal = false, .whole_rows = true}), 2 * (kDelta + kOfHeads + 2 * kSlopes));
  EXPECT_EQ(again({.whole_rows = true, .any_order = true}), 2 * (kDelta + kOfHeads + kSums));
  // Own kernels keep no pairs.
  EXPECT_EQ(again({}), 2 * kDelta);
  EXPECT_EQ(again({.whole_rows = true, .window = 16}), 2 * kDelta);
  EXPECT_EQ(again({.whole_rows = true, .softcap = 2.0}), 2 * kDelta);
}

// Rows of more than 8192 elements are read again for each pass over them.
TEST(OpWork, OfWideNormsIsThatOfTheirPasses) {
  const auto again = [](const OpRef& op, std::initializer_list<std::string_view> operands) {
    std::vector<double> bytes;
    for (const Work& part : work(*op, types(DType::kBF16, operands))) {
      bytes.push_back(part.bytes_again);
    }
    return bytes;
  };
  constexpr double kX = 512.0 * 16384 * 2;
  const std::string_view x = "?[seq=512, embed=16384]";
  const std::string_view gain = "?[embed=16384]";
  const std::string_view rstd = "f32[seq=512]";
  using Bytes = std::vector<double>;
  EXPECT_EQ(again(make_op(RmsNormAttrs{}), {"?[seq=512, embed=8192]", "?[embed=8192]"}),
            Bytes{0.0});
  EXPECT_EQ(again(make_op(RmsNormAttrs{}), {x, gain}), Bytes{kX});
  EXPECT_EQ(again(make_op(RmsNormAttrs{.residual = true}), {x, x, gain}), Bytes{2 * kX});
  EXPECT_EQ(again(make_op(LayerNormAttrs{}), {x, gain, gain}), Bytes{2 * kX});
  EXPECT_EQ(again(make_op(LayerNormAttrs{.residual = true}), {x, x, gain, gain}), Bytes{4 * kX});
  EXPECT_EQ(again(make_op(RmsNormBackwardAttrs{}), {x, x, gain, rstd}), Bytes{2 * kX});
  // 32 stretches of 16 rows.
  constexpr double kSums = 32.0 * 16384 * 4;
  EXPECT_EQ(again(make_op(RmsNormBackwardAttrs{.weight_gradient = true}), {x, x, gain, rstd}),
            (Bytes{2 * kX, 2 * kX + kSums, kSums}));
  EXPECT_EQ(again(make_op(LayerNormWeightGradientAttrs{}), {x, x, rstd, rstd}),
            (Bytes{2 * kSums, 2 * kSums}));
}

View view_without_memory(const TensorType& type) {
  View view{.dtype = type.dtype, .num_dims = static_cast<std::int32_t>(type.num_dims())};
  std::int64_t stride = 1;
  for (std::size_t i = type.num_dims(); i-- > 0;) {
    view.sizes.at(i) = type.dims[i].bound;
    view.strides.at(i) = stride;
    stride *= type.dims[i].bound;
  }
  return view;
}

// Partial sums are written and read once, and fill the workspace of the CUDA kernels.
TEST(OpWork, OfNormsHasTheirPartialSums) {
  for (const std::int64_t rows : {1, 100, 2048, 16384}) {
    for (const std::int64_t width : {64, 1024, 1032, 4096, 4104, 8192, 8200, 65536}) {
      const TensorTypes in = types(DType::kBF16,
                                   {format("?[seq={}, embed={}]", rows, width),
                                    format("?[seq={}, embed={}]", rows, width),
                                    format("f32[seq={}]", rows),
                                    format("f32[seq={}]", rows)});
      std::vector<View> views;
      for (const TensorType& type : in) {
        views.push_back(view_without_memory(type));
      }
      const LayerNormWeightGradientAttrs attrs;
      const Works works = work(*make_op(attrs), in);
      ASSERT_EQ(works.size(), 2);
      EXPECT_EQ(works[1].times, 2);
      EXPECT_EQ(works[0].bytes_again, works[1].bytes_again);
      EXPECT_EQ(works[1].bytes_again, static_cast<double>(cuda_workspace_bytes(attrs, views, {})))
          << rows << " x " << width;
    }
  }
  // 256 stretches of eight rows.
  const Works sums = work(
      *make_op(RmsNormWeightGradientAttrs{}),
      types(DType::kBF16, {"?[seq=2048, embed=4096]", "?[seq=2048, embed=4096]", "f32[seq=2048]"}));
  EXPECT_EQ(sums[1].bytes_again, 256.0 * 4096 * 4);
}

}  // namespace
}  // namespace tessera::conformance
