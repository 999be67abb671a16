// One forward pass over ragged rows.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "core.h"
#include "governor.h"
#include "model.h"
#include "scratch.h"
#include "slice.h"

namespace tp {

inline int64_t now_ns() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// A step as twinpath.types.StepPlan describes it; all arrays belong to the caller.
struct StepArgs {
    int32_t num_segments, max_pages, layer_begin, layer_end;
    const int32_t* starts;           // [num_segments]
    const int32_t* lengths;          // [num_segments]
    const uint8_t* sample;           // [num_segments]
    const uint8_t* keep_hidden;      // [num_segments]: write the segment's final hidden rows; null: none
    const int32_t* tokens;           // [rows]; read when layer_begin == 0
    const int32_t* block_tables;     // [num_segments][max_pages]
    float* residual;                 // [rows][hidden]; needed when the layer range is not whole
    float* logits;                   // [sampled segments][logits_stride]
    int64_t logits_stride;           // >= vocab rounded up to 16
    float* hidden;                   // [rows of segments with keep_hidden][hidden], normalised: input of lm_head()
    const int32_t* cancel;           // not zero: stop soon; may be null; written by other threads
};

enum class StepStatus : int32_t { kDone = 0, kCancelled = 1, kBadArguments = 2, kNoMemory = 3, kPaused = 4 };

struct Limits {
    int32_t page_size, num_pages, max_rows, max_position;
};

class Stepper {
public:
    Stepper(Model model, const Kernels* kernels, std::unique_ptr<ThreadPool> pool, int activation_bits);
    // Goes on with slices of `main`, which outlives it and is prepared, while that runs other steps.
    Stepper(const Stepper& main, std::unique_ptr<ThreadPool> pool);

    std::string prepare(const Limits& limits);  // allocates; "" or what is wrong
    StepStatus run(const StepArgs& args, std::string* error);
    // Null: no memory.
    std::unique_ptr<Slice> make_slice() const;
    // A whole step in several calls with the same rows: works for about `budget_ns` and says kPaused, the layer where it is in
    // `layer`, until it is done. `resume`: goes on where `slice` is; else begins. Steps may run in between, and other slices.
    StepStatus run_slice(const StepArgs& args, Slice* slice, int64_t budget_ns, bool resume, int32_t* layer, std::string* error);
    // As run(), on so many of its threads at most: somebody else needs the others' processors meanwhile.
    StepStatus run_beside(const StepArgs& args, int num_threads, std::string* error);
    // From another stepper's slice that is paused: goes on until it is stopped (see Slice::stop) or only its outputs are left.
    void go_on(const StepArgs& args, Slice* slice, std::string* error);
    // logits [num_rows][stride] of hidden rows that a step kept; num_rows <= max_rows.
    StepStatus lm_head(const float* hidden, int num_rows, float* logits, int64_t stride, std::string* error);
    bool set_threads(int num_threads);
    // Key-value pages [begin, end), see KvPool::back. Not while a step runs.
    void back_pages(int32_t begin, int32_t end) const { kv_.back(begin, end); }
    // The next step runs with one thread less, if there is one to spare: not a prefill (its first token waits too), and not a
    // step that comes later than whoever needs the core.
    void leave_core();

    Model& model() { return model_; }
    ThreadPool& pool() { return *pool_; }
    const Kernels& kernels() const { return *kernels_; }
    int64_t progress() const { return progress_.load(std::memory_order_relaxed); }

private:
    struct Row {
        int32_t segment, position;
    };
    // Rows of one segment whose queries are attended together.
    struct Tile {
        int32_t segment, first_row, num_rows;
    };

    // One span of one row's context.
    struct SpanTask {
        int32_t row, span;
    };

    std::string check(const StepArgs& a) const;
    void lay_out(const StepArgs& a);
    void find_angles();
    void embed(const StepArgs& a);
    void run_layer(const StepArgs& a, int index);
    void attention(const StepArgs& a, const Layer& l, int index);
    bool splits_spans() const;
    void attend_spans(const StepArgs& a, const Layer& l, int index);
    void merge_spans(int row, int kv_head);
    int first_seen(const Layer& l, int row) const;
    void quantise_heads(int row, int kv_head);
    void prepare_heads(const StepArgs& a, const Layer& l, int index, int row, int kv_head, ThreadScratch& thread);
    void attend_tile(const StepArgs& a, const Layer& l, int index, const Tile& tile, int kv_head, ThreadScratch& thread);
    void mlp(const Layer& l);
    void join(const std::vector<float>& bias, const std::vector<float>& post_norm);
    void write_hidden(const StepArgs& a);
    void write_logits(const StepArgs& a);
    void run_rows(const StepArgs& a);
    StepStatus run_rows_of(const StepArgs& a, Slice* slice, std::string* error);

    // Acts of rows [0, num_rows) of `x` after the norm. Small steps: nothing now, each thread does it at first use.
    void normalise(const float* x, int num_rows, const std::vector<float>& norm);
    const Acts& normalised(int thread);
    void quantise_row(const float* x, const std::vector<float>& norm, const Acts& out, int row, ThreadScratch& thread);
    template <class Input>
    void multiply(const Matrix* const* parts, int num_parts, int num_rows, Input&& input, float* out, int64_t stride, bool add);
    template <class F>
    void phase(int num_tasks, F&& task);
    bool is_over() const { return slice_ && slice_->is_over(); }
    bool cancelled() const { return cancel_ && __atomic_load_n(cancel_, __ATOMIC_RELAXED) != 0; }

    // How many threads the work of a phase is cut for.
    int width() const { return slice_ ? slice_->num_threads : pool_->active(); }

    std::shared_ptr<Model> shared_model_;
    std::shared_ptr<KvPool> shared_kv_;
    Model& model_;
    KvPool& kv_;
    const Kernels* kernels_;
    std::unique_ptr<ThreadPool> pool_;
    int bits_;
    Limits limits_{};
    StepScratch scratch_;
    std::vector<Row> rows_;
    std::vector<Tile> tiles_;
    std::vector<SpanTask> spans_;
    std::vector<SpanPartial> span_partials_;  // [span task][kv head][its heads]
    std::vector<float> span_values_;          // [span task][kv head][its heads][head_dim padded]
    int num_rows_ = 0;
    bool decode_only_ = false;
    // What `normalised` refers to.
    const float* norm_input_ = nullptr;
    const std::vector<float>* norm_weight_ = nullptr;
    int norm_rows_ = 0;
    int64_t norm_id_ = 0;
    const int32_t* cancel_ = nullptr;
    Slice* slice_ = nullptr;  // that is running
    int32_t layer_ = 0;       // where it is over
    int most_threads_ = 0;    // of a step beside somebody; 0: any
    Governor governor_;
    IdleCores idle_cores_;
    int64_t leave_core_until_ns_ = 0;
    std::atomic<int64_t> progress_{0};
};

template <class F>
void Stepper::phase(int num_tasks, F&& task) {
    if (cancelled()) return;
    if (slice_) {
        if (!slice_->enter(num_tasks, now_ns())) return;
        pool_->run(slice_->num_tasks(), [&](int i, int thread) {
            if (!cancelled() && !slice_->leaves(i, now_ns())) task(slice_->task(i), thread);
        });
        slice_->exit();
    } else {
        pool_->run(num_tasks, [&](int index, int thread) {
            if (!cancelled()) task(index, thread);
        });
    }
    progress_.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace tp
