package io.weir.flink.keyed;

import io.weir.flink.nativelib.Engine;

import org.apache.flink.metrics.Gauge;
import org.apache.flink.metrics.MetricGroup;

import java.io.IOException;

/** Shows the engine's figures as gauges of the operator, under {@code weir}. */
final class EngineMetrics {

    private EngineMetrics() {}

    static void register(MetricGroup operator, Engine engine) throws IOException {
        MetricGroup group = operator.addGroup("weir");
        String[] names = Engine.statNames();
        for (int i = 0; i < names.length; i++) {
            int index = i;
            group.gauge(names[i], (Gauge<Long>) () -> figure(engine, index));
        }
    }

    /** 0 once the engine is closed, which metrics outlive for a moment. */
    private static long figure(Engine engine, int index) {
        try {
            return engine.stats()[index];
        } catch (IOException e) {
            return 0;
        }
    }
}
