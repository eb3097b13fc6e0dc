// Gemma 3 (Gemma Team, 2025), the text model: Gemma 2 with a norm for each head of q and k instead of capped scores, a
// window of keys in five of six layers, and rotary angles of another base there.

#include <nlohmann/json.hpp>

#include "hpcdl/models/hf_keys.h"

namespace hpcdl::models {

const FamilyRow gemma3_text_row{
    .architecture = "Gemma3ForCausalLM",
    .parse =
        [](const io::JsonObject& o, io::ModelConfig& c) {
          parse_gemma_keys(o, c, {{.context = 131072, .kv_heads = 4, .rope_theta = 1e6}});
          if (const auto every = size_in(o, "sliding_window_pattern", 6); c.sliding.empty() && every != 6) {
            require(every >= 1, "io", "{}: sliding_window_pattern: expected a number of layers, found {}", o.where(),
                    every);
            read_layer_types(o, c);
            for (std::int64_t i = 0; i < c.layers; ++i) c.sliding[static_cast<std::size_t>(i)] = (i + 1) % every != 0;
          }
          c.rope_local_theta = o.get_or("rope_local_base_freq", 10'000.0);
          const io::Json* rope = o.find("rope_parameters");
          if (!rope) return;
          const io::JsonObject types(*rope, o.where() + ": rope_parameters");
          if (const io::Json* full = types.find("full_attention"))
            read_rope(io::JsonObject(*full, types.where() + ": full_attention"), o, c);
          if (const io::Json* sliding = types.find("sliding_attention")) {
            io::ModelConfig local = c;
            local.rope_theta = c.rope_local_theta, local.rope_scaling = {};
            read_rope(io::JsonObject(*sliding, types.where() + ": sliding_attention"), o, local);
            require(local.rope_scaling.kind == RopeScaling::Kind::none, "io",
                    "{}: sliding_attention: expected rope_type default, found another scaling", types.where());
            c.rope_local_theta = local.rope_theta;
          }
        },
    .write =
        [](const io::ModelConfig& c, io::Json& j) {
          write_gemma_keys(c, j);
          j["rope_local_base_freq"] = c.rope_local_theta;
          j["rope_parameters"] = {
              {"full_attention", j["rope_parameters"]},
              {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", c.rope_local_theta}}}};
        },
    .decoder =
        [](const io::ModelConfig& c) {
          auto spec = gemma_decoder(c, true);
          spec.local_angles = true;
          return spec;
        },
    .check =
        [](const io::ModelConfig& c) {
          if (c.rope_scaling.kind == RopeScaling::Kind::longrope)
            fail_usage("model", "family gemma3_text has no rotary angles of longrope");
          if (!(c.rope_local_theta >= 1 && c.rope_local_theta < 1e30))
            fail_usage("model", "rope_local_base_freq: expected a number >= 1, found {}", c.rope_local_theta);
        },
    .chooses_attention_bias = true,
    .has_windows = true,
    .slides = [](std::int64_t layer) { return (layer + 1) % 6 != 0; },
    .gate = io::Activation::gelu_new,
    .reads = {"attention_bias", "attn_logit_softcapping", "final_logit_softcapping", "query_pre_attn_scalar",
              "sliding_window"},
};

}  // namespace hpcdl::models
