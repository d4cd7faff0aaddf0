#include "tessera/models/llama/llama.h"

#include <string>

#include "tessera/models/decoder/decoder_blocks.h"
#include "tessera/ops/elementwise/elementwise.h"

namespace tessera {

ModelOutputs llama(GraphBuilder& builder, const LlamaConfig& config, const ModelInputs& inputs) {
  DecoderBlocks m(builder, config, inputs);
  const bool bias = config.attention_bias;
  return m.write([&](const Value& x, const std::string& layer) {
    const Value a = m.norm(x, layer + "attention_norm");
    const Value q = m.turned(m.queries(a, layer, bias));
    const Value k = m.turned(m.keys(a, layer, bias));
    const Value v = m.values(a, layer, bias);
    const Value h = add(x, m.attend(q, k, v, layer, bias));

    const Value b = m.norm(h, layer + "ffn_norm");
    return add(h, m.feed_forward(b, layer));
  });
}

}  // namespace tessera
