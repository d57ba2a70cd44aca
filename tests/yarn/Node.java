import java.io.File;
import java.io.FileOutputStream;
import java.io.OutputStream;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.server.MiniYARNCluster;

/** A resource manager and a node manager of YARN, whose containers are processes; ends when its standard input does. */
public class Node {
    public static void main(String[] folders) throws Exception {
        YarnConfiguration conf = new YarnConfiguration();
        conf.set(
                YarnConfiguration.RM_SCHEDULER,
                "org.apache.hadoop.yarn.server.resourcemanager.scheduler.fifo.FifoScheduler");
        conf.setInt(YarnConfiguration.RM_SCHEDULER_MINIMUM_ALLOCATION_MB, 256);
        conf.setInt(YarnConfiguration.NM_PMEM_MB, 4096);
        conf.setBoolean(YarnConfiguration.NM_VMEM_CHECK_ENABLED, false);
        // A disk that is nearly full is no reason to refuse tests.
        conf.setFloat(YarnConfiguration.NM_MAX_PER_DISK_UTILIZATION_PERCENTAGE, 100f);
        MiniYARNCluster cluster = new MiniYARNCluster("node", 1, 1, 1);
        cluster.init(conf);
        cluster.start();
        if (!cluster.waitForNodeManagersToConnect(120_000)) {
            throw new IllegalStateException("the node does not come up");
        }
        // Under its own name at once: who waits for it reads all of it.
        File written = new File(folders[0], "written");
        try (OutputStream out = new FileOutputStream(written)) {
            cluster.getConfig().writeXml(out);
        }
        if (!written.renameTo(new File(folders[0], "yarn-site.xml"))) {
            throw new IllegalStateException("its settings cannot be kept");
        }
        System.in.read();
        System.exit(0);
    }
}
