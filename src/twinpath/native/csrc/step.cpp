#include "step.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "core.h"
#include "repack.h"

namespace tp {
namespace {

// A token takes about 1 ms from the step to its client.
constexpr int64_t kLeaveCoreNs = 2'000'000;
constexpr int kMostRowsBesideOthers = 8;
// This much of a processor unused: a thread more has a place.
constexpr double kIdleCore = 0.7;
// Tokens per task of a matrix multiplication: bounds a task, and so the time to react to a cancel, to about a millisecond.
constexpr int kTokensPerTask = 256;
// Weights of a task when several tokens share them: stay in the first-level cache while token tiles pass by.
constexpr int64_t kTaskWeightBytes = 12 * 1024;
// Tasks per thread in a phase: enough that a late thread leaves little undone, few enough to claim cheaply.
constexpr int kTasksPerThread = 6;
constexpr int kRowsPerTask = 8;
// Query rows per attention task of a slice, which stops between tasks: one tile of the widest kernels, 0.2 ms at 6,000 tokens.
constexpr int kSliceQueryRows = 12;

}  // namespace

Stepper::Stepper(Model model, const Kernels* kernels, std::unique_ptr<ThreadPool> pool, int activation_bits)
    : shared_model_(std::make_shared<Model>(std::move(model))), shared_kv_(std::make_shared<KvPool>()), model_(*shared_model_),
      kv_(*shared_kv_), kernels_(kernels), pool_(std::move(pool)), bits_(activation_bits) {}

Stepper::Stepper(const Stepper& main, std::unique_ptr<ThreadPool> pool)
    : shared_model_(main.shared_model_), shared_kv_(main.shared_kv_), model_(*shared_model_), kv_(*shared_kv_),
      kernels_(main.kernels_), pool_(std::move(pool)), bits_(main.bits_), limits_(main.limits_) {}

std::string Stepper::prepare(const Limits& limits) {
    std::string error = model_.check_complete();
    if (!error.empty()) return error;
    if (limits.page_size < 16 || limits.page_size % 16 || limits.num_pages < 1 || limits.max_rows < 1) {
        return "page_size must be a multiple of 16, num_pages and max_rows at least 1";
    }
    limits_ = limits;
    const bool dense = model_.any_dense();
    if (!kv_.allocate(model_.spec, limits.page_size, limits.num_pages)) return "no memory for the key-value pool";
    if (!scratch_.allocate(model_.spec, limits.max_rows, bits_, dense)) return "no memory for the step";
    return set_threads(pool_->num_threads()) ? "" : "no memory for the threads";
}

bool Stepper::set_threads(int num_threads) {
    if (!scratch_.allocate_threads(model_.spec, num_threads, bits_, model_.any_dense())) return false;
    pool_->resize(num_threads);
    return true;
}

std::string Stepper::check(const StepArgs& a) const {
    const Spec& s = model_.spec;
    if (a.num_segments < 0 || a.max_pages < 0) return "negative number of segments or pages";
    if (a.layer_begin < 0 || a.layer_end > s.num_layers || a.layer_begin > a.layer_end) return "layer range out of bounds";
    const bool whole_end = a.layer_end == s.num_layers;
    if ((a.layer_begin > 0 || !whole_end) && !a.residual) return "a partial layer range needs a residual buffer";
    int64_t rows = 0;
    bool any_sample = false, any_hidden = false;
    for (int i = 0; i < a.num_segments; ++i) {
        if (a.starts[i] < 0 || a.lengths[i] < 1) return "segment " + std::to_string(i) + " has a bad start or length";
        const int64_t end = static_cast<int64_t>(a.starts[i]) + a.lengths[i];
        if (end > limits_.max_position) return "segment " + std::to_string(i) + " ends beyond position " + std::to_string(limits_.max_position);
        const int64_t pages = (end + limits_.page_size - 1) / limits_.page_size;
        if (pages > a.max_pages) return "segment " + std::to_string(i) + " needs more pages than its block table has";
        for (int64_t p = 0; p < pages; ++p) {
            const int32_t page = a.block_tables[static_cast<int64_t>(i) * a.max_pages + p];
            if (page < 0 || page >= limits_.num_pages) return "segment " + std::to_string(i) + " names page " + std::to_string(page);
        }
        rows += a.lengths[i];
        any_sample = any_sample || a.sample[i];
        any_hidden = any_hidden || (a.keep_hidden && a.keep_hidden[i]);
    }
    if (rows > limits_.max_rows) return "the step has " + std::to_string(rows) + " rows, limit " + std::to_string(limits_.max_rows);
    if (a.layer_begin == 0) {
        for (int64_t r = 0; r < rows; ++r) {
            if (a.tokens[r] < 0 || a.tokens[r] >= s.vocab) return "token id " + std::to_string(a.tokens[r]) + " is not in the vocabulary";
        }
    }
    if (whole_end && any_sample && (!a.logits || a.logits_stride < round_up(s.vocab, kGroup))) return "no room for the logits";
    if (whole_end && any_hidden && !a.hidden) return "no room for the hidden rows";
    return "";
}

// Rows, and tiles of rows that are attended together.
void Stepper::lay_out(const StepArgs& a) {
    rows_.clear();
    tiles_.clear();
    decode_only_ = true;
    const int per_tile = std::max(1, (slice_ ? kSliceQueryRows : kMaxQueryRows) / model_.spec.heads_per_kv());
    for (int i = 0; i < a.num_segments; ++i) {
        decode_only_ = decode_only_ && a.lengths[i] == 1;
        for (int t = 0; t < a.lengths[i]; ++t) {
            if (t % per_tile == 0) tiles_.push_back({i, static_cast<int32_t>(rows_.size()), std::min(per_tile, a.lengths[i] - t)});
            rows_.push_back({i, a.starts[i] + t});
        }
    }
    num_rows_ = static_cast<int>(rows_.size());
}

void Stepper::leave_core() { leave_core_until_ns_ = now_ns() + kLeaveCoreNs; }

StepStatus Stepper::run(const StepArgs& a, std::string* error) {
    *error = check(a);
    if (!error->empty()) return StepStatus::kBadArguments;
    cancel_ = a.cancel;
    lay_out(a);
    if (num_rows_ == 0) return cancelled() ? StepStatus::kCancelled : StepStatus::kDone;
    const int active = pool_->active(), most = pool_->num_threads();
    const bool is_long = slice_ || num_rows_ > kMostRowsBesideOthers;
    const bool leaves_core = !is_long && active > 1 && now_ns() < leave_core_until_ns_;
    leave_core_until_ns_ = 0;
    if (most_threads_) pool_->set_active(std::min(active, most_threads_));
    else pool_->set_active(is_long ? most : leaves_core ? active - 1 : active);
    const int64_t begin_ns = now_ns(), begin_cpu_ns = thread_cpu_ns();
    run_rows(a);
    const int64_t end_ns = now_ns(), step_ns = end_ns - begin_ns;
    const ThreadPool::Waits waits = pool_->take_waits();
    // What this thread neither ran nor slept: somebody else had its processor.
    const int64_t stolen_ns = std::max<int64_t>(0, step_ns - (thread_cpu_ns() - begin_cpu_ns) - waits.asleep_ns);
    if (leaves_core || most_threads_) {
        pool_->set_active(active);  // not the governor's business: it would judge the step slow
    } else if (is_long) {
        pool_->set_active(governor_.after_long(active, most, step_ns, waits.late_ns + stolen_ns));
    } else {
        pool_->set_active(governor_.next(active, most, end_ns, num_rows_, step_ns, waits.late_ns + stolen_ns));
        if (governor_.should_move(pool_->active(), most, end_ns, step_ns, stolen_ns)) leave_this_core();
        if (governor_.should_look(pool_->active(), most, end_ns) && idle_cores_.look(end_ns) > kIdleCore) governor_.retry();
    }
    return cancelled() ? StepStatus::kCancelled : StepStatus::kDone;
}

std::unique_ptr<Slice> Stepper::make_slice() const {
    StepScratch scratch;
    if (!scratch.allocate(model_.spec, limits_.max_rows, bits_, model_.any_dense())) return nullptr;
    return std::make_unique<Slice>(std::move(scratch));
}

StepStatus Stepper::run_slice(const StepArgs& a, Slice* slice, int64_t budget_ns, bool resume, int32_t* layer, std::string* error) {
    if (a.layer_begin != 0 || a.layer_end != model_.spec.num_layers) {
        *error = "a slice runs through all layers";
        return StepStatus::kBadArguments;
    }
    slice->begin(resume && slice->num_threads == pool_->num_threads(), now_ns() + budget_ns);
    slice->num_threads = pool_->num_threads();
    const StepStatus status = run_rows_of(a, slice, error);
    *layer = layer_;
    return status == StepStatus::kDone && slice->is_over() ? StepStatus::kPaused : status;
}

StepStatus Stepper::run_rows_of(const StepArgs& a, Slice* slice, std::string* error) {
    const auto exchange = [&] {
        std::swap(scratch_, slice->scratch());
        std::swap(scratch_.threads, slice->scratch().threads);  // these stay
    };
    slice_ = slice;
    exchange();
    const StepStatus status = run(a, error);
    exchange();
    slice_ = nullptr;
    return status;
}

StepStatus Stepper::run_beside(const StepArgs& a, int num_threads, std::string* error) {
    most_threads_ = std::max(1, num_threads);
    const StepStatus status = run(a, error);
    most_threads_ = 0;
    return status;
}

void Stepper::go_on(const StepArgs& a, Slice* slice, std::string* error) {
    if (!scratch_.allocate_threads(model_.spec, pool_->num_threads(), bits_, model_.any_dense())) return;
    run_rows_of(a, slice, error);
}

void Stepper::run_rows(const StepArgs& a) {
    const int hidden = model_.spec.hidden;
    layer_ = a.layer_begin;
    if (a.layer_begin == 0) embed(a);
    else for (int r = 0; r < num_rows_; ++r) std::memcpy(scratch_.x + r * scratch_.hidden_stride, a.residual + static_cast<int64_t>(r) * hidden, sizeof(float) * hidden);
    find_angles();
    for (int i = a.layer_begin; i < a.layer_end && !cancelled() && !is_over(); ++i) {
        layer_ = i;
        run_layer(a, i);
    }
    if (is_over()) return;
    if (slice_ && !slice_->enter_outputs()) return;
    if (slice_) slice_->ignore_deadline();  // logits go to the arrays of one call
    if (a.layer_end < model_.spec.num_layers) {
        for (int r = 0; r < num_rows_; ++r) std::memcpy(a.residual + static_cast<int64_t>(r) * hidden, scratch_.x + r * scratch_.hidden_stride, sizeof(float) * hidden);
    } else {
        write_hidden(a);
        write_logits(a);
    }
}

void Stepper::embed(const StepArgs& a) {
    phase((num_rows_ + kRowsPerTask - 1) / kRowsPerTask, [&](int task, int) {
        for (int r = task * kRowsPerTask; r < std::min(num_rows_, (task + 1) * kRowsPerTask); ++r) {
            float* x = scratch_.x + r * scratch_.hidden_stride;
            dequantize_row(model_.embed.matrix, a.tokens[r], x);
            for (int i = 0; i < model_.spec.hidden; ++i) x[i] *= model_.spec.embed_scale;
        }
    });
}

// The angle is rounded to fp32 before the cosine, as every reference implementation does.
void Stepper::find_angles() {
    const int half = model_.spec.head_dim / 2;
    phase((num_rows_ + kRowsPerTask - 1) / kRowsPerTask, [&](int task, int) {
        for (int r = task * kRowsPerTask; r < std::min(num_rows_, (task + 1) * kRowsPerTask); ++r) {
            for (size_t n = 0; n < model_.ropes.size(); ++n) {
                const Rope& rope = model_.ropes[n];
                const int64_t at = (static_cast<int64_t>(n) * limits_.max_rows + r) * half;
                for (int i = 0; i < half; ++i) {
                    const float angle = static_cast<float>(rows_[r].position) * rope.inverse_frequencies[i];
                    scratch_.cos[at + i] = std::cos(angle) * rope.factor;
                    scratch_.sin[at + i] = std::sin(angle) * rope.factor;
                }
            }
        }
    });
}

// ---- norms and matrix multiplications ----------------------------------------------------------------------------------

void Stepper::quantise_row(const float* x, const std::vector<float>& norm, const Acts& out, int row, ThreadScratch& thread) {
    kernels_->rms_norm(x, norm.data(), model_.spec.hidden, model_.spec.norm_eps, thread.norm);
    kernels_->quantize(thread.norm, out.num_blocks, out, row, 0);
}

void Stepper::normalise(const float* x, int num_rows, const std::vector<float>& norm) {
    norm_input_ = x;
    norm_weight_ = &norm;
    norm_rows_ = num_rows;
    ++norm_id_;
    if (num_rows <= ThreadScratch::kOwnRows) return;
    phase((num_rows + kRowsPerTask - 1) / kRowsPerTask, [&](int task, int thread) {
        for (int r = task * kRowsPerTask; r < std::min(num_rows, (task + 1) * kRowsPerTask); ++r) {
            quantise_row(x + r * scratch_.hidden_stride, norm, scratch_.hidden.acts, r, *scratch_.threads[thread]);
        }
    });
}

const Acts& Stepper::normalised(int thread) {
    if (norm_rows_ > ThreadScratch::kOwnRows) return scratch_.hidden.acts;
    ThreadScratch& own = *scratch_.threads[thread];
    if (own.prepared != norm_id_) {
        own.prepared = norm_id_;
        for (int r = 0; r < norm_rows_; ++r) quantise_row(norm_input_ + r * scratch_.hidden_stride, *norm_weight_, own.own.acts, r, own);
    }
    return own.own.acts;
}

// out[t][...] (+)= the parts' rows, one part after another at multiples of 16; `input(thread)` gives the activations.
template <class Input>
void Stepper::multiply(const Matrix* const* parts, int num_parts, int num_rows, Input&& input, float* out, int64_t stride, bool add) {
    int total = 0;
    int64_t group_bytes = 1;
    for (int p = 0; p < num_parts; ++p) {
        total += parts[p]->num_groups;
        group_bytes = std::max(group_bytes, parts[p]->group_bytes);
    }
    int per_task = std::max(1, total / (width() * kTasksPerThread));
    if (num_rows > 4) per_task = std::min<int>(per_task, static_cast<int>(std::max<int64_t>(1, kTaskWeightBytes / group_bytes)));
    const int slices = (total + per_task - 1) / per_task;
    const int token_slices = (num_rows + kTokensPerTask - 1) / kTokensPerTask;
    phase(slices * token_slices, [&](int task, int thread) {
        const Acts& x = input(thread);
        const int token = task / slices * kTokensPerTask, num_tokens = std::min(kTokensPerTask, num_rows - token);
        int begin = task % slices * per_task;
        const int end = std::min(total, begin + per_task);
        int part_begin = 0;
        for (int p = 0; p < num_parts && begin < end; part_begin += parts[p]->num_groups, ++p) {
            const int stop = std::min(end, part_begin + parts[p]->num_groups);
            if (begin >= stop) continue;
            kernels_->gemm(*parts[p], begin - part_begin, stop - begin, x, token, num_tokens,
                           out + token * stride + static_cast<int64_t>(begin) * kGroup, stride, add);
            begin = stop;
        }
    });
}

// Bias and post-norm of a block's output, and its way into the residual stream where it is not there yet.
void Stepper::join(const std::vector<float>& bias, const std::vector<float>& post_norm) {
    if (bias.empty() && post_norm.empty()) return;
    const Spec& s = model_.spec;
    phase((num_rows_ + kRowsPerTask - 1) / kRowsPerTask, [&](int task, int) {
        for (int r = task * kRowsPerTask; r < std::min(num_rows_, (task + 1) * kRowsPerTask); ++r) {
            float* x = scratch_.x + r * scratch_.hidden_stride;
            float* part = post_norm.empty() ? x : scratch_.part + r * scratch_.hidden_stride;
            if (!bias.empty()) kernels_->add(part, bias.data(), s.hidden);
            if (post_norm.empty()) continue;
            kernels_->rms_norm(part, post_norm.data(), s.hidden, s.norm_eps, part);
            kernels_->add(x, part, s.hidden);
        }
    });
}

// ---- one layer ----------------------------------------------------------------------------------------------------------

void Stepper::run_layer(const StepArgs& a, int index) {
    const Layer& l = model_.layers[static_cast<size_t>(index)];
    const bool sandwich = model_.spec.sandwich != 0;
    normalise(scratch_.x, num_rows_, l.attn_norm);
    const Matrix* qkv[] = {&l.q.matrix, &l.k.matrix, &l.v.matrix};
    multiply(qkv, 3, num_rows_, [this](int thread) -> const Acts& { return normalised(thread); }, scratch_.qkv, scratch_.qkv_stride, false);
    attention(a, l, index);
    const Matrix* o[] = {&l.o.matrix};
    multiply(o, 1, num_rows_, [this](int) -> const Acts& { return scratch_.attended.acts; }, sandwich ? scratch_.part : scratch_.x,
             scratch_.hidden_stride, !sandwich);
    join(l.o_bias, l.post_attn_norm);
    mlp(l);
}

void Stepper::mlp(const Layer& l) {
    normalise(scratch_.x, num_rows_, l.mlp_norm);
    const int blocks = model_.spec.intermediate_padded() / kBlock, groups = l.gate.matrix.num_groups;
    const Activation activation = static_cast<Activation>(model_.spec.activation);
    const int per_task = num_rows_ > 4 ? 1 : std::max(1, blocks / (width() * kTasksPerThread));
    const int slices = (blocks + per_task - 1) / per_task, token_slices = (num_rows_ + kTokensPerTask - 1) / kTokensPerTask;
    phase(slices * token_slices, [&](int task, int thread) {
        const Acts& x = normalised(thread);
        ThreadScratch& own = *scratch_.threads[thread];
        const int end = std::min(num_rows_, (task / slices + 1) * kTokensPerTask);
        for (int b = task % slices * per_task; b < std::min(blocks, (task % slices + 1) * per_task); ++b) {
            const int num_groups = std::min(2, groups - 2 * b);
            for (int t = task / slices * kTokensPerTask; t < end; t += ThreadScratch::kGluTokens) {
                const int n = std::min<int>(ThreadScratch::kGluTokens, end - t);
                if (num_groups < 2) std::memset(own.gate, 0, sizeof(float) * kBlock * n), std::memset(own.up, 0, sizeof(float) * kBlock * n);
                kernels_->gemm(l.gate.matrix, 2 * b, num_groups, x, t, n, own.gate, kBlock, false);
                kernels_->gemm(l.up.matrix, 2 * b, num_groups, x, t, n, own.up, kBlock, false);
                kernels_->glu(own.gate, own.up, n * kBlock, activation, own.gate);
                for (int i = 0; i < n; ++i) kernels_->quantize(own.gate + i * kBlock, 1, scratch_.inner.acts, t + i, b);
            }
        }
    });
    const bool sandwich = model_.spec.sandwich != 0;
    const Matrix* down[] = {&l.down.matrix};
    multiply(down, 1, num_rows_, [this](int) -> const Acts& { return scratch_.inner.acts; }, sandwich ? scratch_.part : scratch_.x,
             scratch_.hidden_stride, !sandwich);
    join({}, l.post_mlp_norm);
}

// ---- the ends -----------------------------------------------------------------------------------------------------------

void Stepper::write_hidden(const StepArgs& a) {
    if (!a.keep_hidden) return;
    float* out = a.hidden;
    const Spec& s = model_.spec;
    for (int r = 0; r < num_rows_ && !cancelled(); ++r) {
        if (!a.keep_hidden[rows_[r].segment]) continue;
        kernels_->rms_norm(scratch_.x + r * scratch_.hidden_stride, model_.final_norm.data(), s.hidden, s.norm_eps, out);
        out += s.hidden;
    }
}

void Stepper::write_logits(const StepArgs& a) {
    int num = 0;
    for (int r = 0; r < num_rows_; ++r) {
        const bool last = r + 1 == num_rows_ || rows_[r + 1].segment != rows_[r].segment;
        if (!last || !a.sample[rows_[r].segment]) continue;
        std::memcpy(scratch_.gathered + num++ * scratch_.hidden_stride, scratch_.x + r * scratch_.hidden_stride,
                    sizeof(float) * scratch_.hidden_stride);
    }
    if (num == 0) return;
    normalise(scratch_.gathered, num, model_.final_norm);
    const Matrix* head[] = {&model_.head()};
    multiply(head, 1, num, [this](int thread) -> const Acts& { return normalised(thread); }, a.logits, a.logits_stride, false);
}

StepStatus Stepper::lm_head(const float* hidden, int num_rows, float* logits, int64_t stride, std::string* error) {
    const Spec& s = model_.spec;
    if (num_rows < 0 || num_rows > limits_.max_rows || stride < round_up(s.vocab, kGroup)) {
        *error = "bad number of rows or logits stride";
        return StepStatus::kBadArguments;
    }
    cancel_ = nullptr;
    for (int r = 0; r < num_rows; ++r) {
        float* x = scratch_.gathered + r * scratch_.hidden_stride;
        std::memcpy(x, hidden + static_cast<int64_t>(r) * s.hidden, sizeof(float) * s.hidden);
        kernels_->quantize(x, scratch_.hidden.acts.num_blocks, scratch_.hidden.acts, r, 0);
    }
    const Matrix* head[] = {&model_.head()};
    multiply(head, 1, num_rows, [this](int) -> const Acts& { return scratch_.hidden.acts; }, logits, stride, false);
    return StepStatus::kDone;
}

}  // namespace tp
