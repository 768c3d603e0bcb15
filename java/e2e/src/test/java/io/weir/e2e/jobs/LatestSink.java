package io.weir.e2e.jobs;

import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.streaming.api.functions.sink.legacy.RichSinkFunction;

/**
 * Keeps the latest value of each key with the control. A value emitted again after a failure
 * replaces the first one, so that in the end this holds what the state says.
 */
public class LatestSink<K, V> extends RichSinkFunction<Tuple2<K, V>> {
    private static final long serialVersionUID = 1L;

    private final Control control;

    public LatestSink(Control control) {
        this.control = control;
    }

    @Override
    public void invoke(Tuple2<K, V> value, Context context) {
        control.results().put(value.f0, value.f1);
    }
}
