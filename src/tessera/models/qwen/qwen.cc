#include "tessera/models/qwen/qwen.h"

#include <string>

#include "tessera/models/decoder/decoder_blocks.h"
#include "tessera/ops/elementwise/elementwise.h"

namespace tessera {

ModelOutputs qwen2(GraphBuilder& builder, const DecoderConfig& config, const ModelInputs& inputs) {
  DecoderBlocks m(builder, config, inputs);
  return m.write([&](const Value& x, const std::string& layer) {
    const Value a = m.norm(x, layer + "attention_norm");
    const Value q = m.turned(m.queries(a, layer, true));
    const Value k = m.turned(m.keys(a, layer, true));
    const Value v = m.values(a, layer, true);
    const Value h = add(x, m.attend(q, k, v, layer));

    const Value b = m.norm(h, layer + "ffn_norm");
    return add(h, m.feed_forward(b, layer));
  });
}

ModelOutputs qwen3(GraphBuilder& builder, const DecoderConfig& config, const ModelInputs& inputs) {
  DecoderBlocks m(builder, config, inputs);
  const bool bias = config.attention_bias;
  return m.write([&](const Value& x, const std::string& layer) {
    const Value a = m.norm(x, layer + "attention_norm");
    const Value q = m.head_norm(m.queries(a, layer, bias), layer + "attention.q_norm");
    const Value k = m.head_norm(m.keys(a, layer, bias), layer + "attention.k_norm");
    const Value v = m.values(a, layer, bias);
    const Value h = add(x, m.attend(m.turned(q), m.turned(k), v, layer, bias));

    const Value b = m.norm(h, layer + "ffn_norm");
    return add(h, m.feed_forward(b, layer));
  });
}

}  // namespace tessera
